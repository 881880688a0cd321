#include "tests/process/rig/thin_job.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "client/provide_frozen.h"
#include "shm/spec/encode.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::testing {

namespace {

using client::MemClient;
using client::Range;
using client::Ticket;

uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93;
  return x ^ (x >> 29);
}

// In [-1, 1), the same for every rank, machine and run.
float Noise(uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t bits = Scramble(Scramble(a * 1'000'003 + b) ^ c) >> 40;
  return static_cast<float>(bits) / static_cast<float>(1 << 23) - 1.0F;
}

float ReadElement(const std::byte* at, DType dtype, uint64_t index) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at + index * 4, 4);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, at + index * 2, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

void WriteElement(std::byte* at, DType dtype, uint64_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(at + index * 4, &value, 4);
    return;
  }
  // Truncation is as good as any rounding here.
  const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  std::memcpy(at + index * 2, &half, 2);
}

// One rank's run. Two rCache blocks take turns, so that a request is in flight while the next is
// made.
class ThinRank {
 public:
  ThinRank(const ThinOptions& options, std::unique_ptr<MemClient> client, ThinBlocks* blocks)
      : options_(options),
        spec_(SpecOf(options)),
        client_(std::move(client)),
        blocks_(blocks),
        block_bytes_(options.chunk_elements * 4) {}

  ~ThinRank() { blocks_->Rest(); }
  ThinRank(const ThinRank&) = delete;
  ThinRank& operator=(const ThinRank&) = delete;

  Status Train(ThinResult* result) {
    TP_RETURN_IF_ERROR(blocks_->Use(client_.get()));
    result->first_version = client_->attachment().sealed_version;
    TP_RETURN_IF_ERROR(ProvideFrozen());
    if (!client_->attachment().weights_ready) TP_RETURN_IF_ERROR(PutWeights());
    std::vector<ChunkId> order(options_.chunks);
    for (uint32_t i = 0; i < options_.chunks; ++i) order[i] = i;
    TP_RETURN_IF_ERROR(client_->DeclareSchedule(order));
    for (uint64_t step = result->first_version; step < options_.steps; ++step) {
      TP_RETURN_IF_ERROR(LookAtFrozen(step));
      TP_RETURN_IF_ERROR(Step(step, result));
      if (options_.after_step) options_.after_step(step + 1);
      if (options_.pause_ns > 0) clock_.SleepNs(options_.pause_ns);
    }
    TP_RETURN_IF_ERROR(Hash(&result->hash));
    if (!options_.save_dir.empty()) TP_RETURN_IF_ERROR(Save());
    if (options_.on_hash) options_.on_hash(result->hash);
    while (options_.stays && options_.stays()) {
      clock_.SleepNs(10 * kNsPerMs);
      // Notices when a peer or the server dies.
      TP_RETURN_IF_ERROR(client_->DeclareSchedule(order));
    }
    return client_->Detach();
  }

 private:
  Range ShardOf(ChunkId chunk) const {
    const uint64_t count = spec_.ShardElements(chunk);
    return {chunk, count * spec_.ShardIndex(chunk, options_.rank), count,
            (chunk % 2) * block_bytes_};
  }
  std::byte* BlockOf(const Range& range) const { return blocks_->At(range); }
  uint64_t BytesIn(const Range& range) const {
    return range.element_count * BytesOf(options_.dtype);
  }

  // Frozen chunks have a block of their own, behind the two that take turns.
  Status ProvideFrozen() {
    const auto read = [this](size_t index, uint64_t begin, std::span<std::byte> bytes) {
      const std::vector<std::byte> content = FrozenContent(options_, index);
      std::copy_n(content.begin() + static_cast<ptrdiff_t>(begin), bytes.size(), bytes.begin());
      if (options_.frozen_wrong) bytes.back() ^= std::byte{1};
      return Status();
    };
    TP_ASSIGN_OR_RETURN(
        const uint64_t put,
        client::ProvideFrozen(client_.get(), spec_, options_.rank,
                              {2 * block_bytes_, block_bytes_, blocks_->Copier()}, read));
    if (options_.on_frozen && options_.frozen_chunks > 0) options_.on_frozen(put);
    return Status();
  }

  // It holds what its name says, whoever put it.
  Status LookAtFrozen(uint64_t step) {
    if (options_.frozen_chunks == 0) return Status();
    const size_t index = step % options_.frozen_chunks;
    const Range range{options_.chunks + static_cast<ChunkId>(index), 0, options_.chunk_elements,
                      2 * block_bytes_};
    if (options_.frozen_written) TP_RETURN_IF_ERROR(TryToWrite(range, step));
    TP_ASSIGN_OR_RETURN(const Ticket ticket, client_->StartFetch(range, step));
    TP_RETURN_IF_ERROR(blocks_->Await(ticket, range, BytesIn(range)));
    const std::vector<std::byte> should = FrozenContent(options_, index);
    const bool same = std::memcmp(BlockOf(range), should.data(), should.size()) == 0;
    return same ? Status()
                : Status(ErrorId::kInternal, "frozen chunk " + std::to_string(index) +
                                                 " has other bytes than its name says");
  }

  Status TryToWrite(const Range& range, uint64_t step) {
    std::fill_n(BlockOf(range), block_bytes_, std::byte{0x5a});
    TP_ASSIGN_OR_RETURN(const Ticket put, client_->StartPutWeights(range));
    const Status refused = client_->Wait(put).status();
    TP_ASSIGN_OR_RETURN(const Ticket gradient, client_->StartSubmitGradient(range, step, 0));
    const Status refused_too = client_->Wait(gradient).status();
    const bool right =
        refused.id() == ErrorId::kChunkFrozen && refused_too.id() == ErrorId::kChunkFrozen;
    return right ? Status()
                 : Status(ErrorId::kInternal, "a frozen chunk was written to: " + refused.Line() +
                                                  "; " + refused_too.Line());
  }

  Status PutWeights() {
    for (ChunkId chunk = 0; chunk < options_.chunks; ++chunk) {
      const Range range = ShardOf(chunk);
      for (uint64_t i = 0; i < range.element_count; ++i) {
        WriteElement(BlockOf(range), DType::kF32, i, Noise(chunk, range.element_begin + i, 0));
      }
      TP_RETURN_IF_ERROR(blocks_->Push(range, range.element_count * sizeof(float), true));
      TP_ASSIGN_OR_RETURN(const Ticket ticket, client_->StartPutWeights(range));
      TP_RETURN_IF_ERROR(client_->Wait(ticket).status());
    }
    return Status();
  }

  Status Step(uint64_t version, ThinResult* result) {
    for (uint32_t micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
      std::vector<Ticket> submitted;
      for (ChunkId chunk = 0; chunk < options_.chunks; ++chunk) {
        // The block is free again when the gradient before the last has been taken.
        if (submitted.size() >= 2)
          TP_RETURN_IF_ERROR(client_->Wait(submitted[submitted.size() - 2]).status());
        TP_ASSIGN_OR_RETURN(const Ticket ticket, Gradient(ShardOf(chunk), version, micro_batch));
        submitted.push_back(ticket);
      }
      for (size_t i = submitted.size() - std::min<size_t>(submitted.size(), 2);
           i < submitted.size(); ++i) {
        TP_RETURN_IF_ERROR(client_->Wait(submitted[i]).status());
      }
    }
    TP_ASSIGN_OR_RETURN(const Ticket ticket, client_->StartEndStep({.version = version,
                                                                    .learning_rate = 0.01F,
                                                                    .data_cursor = version + 1}));
    TP_ASSIGN_OR_RETURN(const client::Outcome outcome, client_->Wait(ticket));
    result->last_grad_norm = outcome.grad_norm;
    if (options_.on_norm) options_.on_norm(version + 1, outcome.grad_norm);
    if (outcome.version == version + 1) return Status();
    return Status(ErrorId::kInternal, "step " + std::to_string(version) + " ended with version " +
                                          std::to_string(outcome.version));
  }

  Result<Ticket> Gradient(const Range& range, uint64_t version, uint32_t micro_batch) {
    TP_ASSIGN_OR_RETURN(const Ticket fetch, client_->StartFetch(range, version));
    TP_RETURN_IF_ERROR(blocks_->Await(fetch, range, BytesIn(range)));
    std::byte* block = BlockOf(range);
    for (uint64_t i = 0; i < range.element_count; ++i) {
      const float weight = ReadElement(block, options_.dtype, i);
      const float noise =
          Noise(range.chunk + 1000 * micro_batch, range.element_begin + i, version + 1);
      WriteElement(block, options_.dtype, i, 0.25F * weight + noise);
    }
    TP_RETURN_IF_ERROR(blocks_->Push(range, BytesIn(range), false));
    TP_ASSIGN_OR_RETURN(const Ticket submitted,
                        client_->StartSubmitGradient(range, version, micro_batch));
    blocks_->Submitted(submitted, range);
    return submitted;
  }

  Status Hash(uint64_t* hash) {
    for (ChunkId chunk = 0; chunk < options_.chunks; ++chunk) {
      const Range range = ShardOf(chunk);
      TP_ASSIGN_OR_RETURN(const Ticket ticket, client_->StartFetch(range, options_.steps));
      TP_RETURN_IF_ERROR(blocks_->Await(ticket, range, BytesIn(range)));
      const std::span<const std::byte> bytes(BlockOf(range), BytesIn(range));
      *hash = Scramble(*hash ^ shm::Fingerprint(bytes));
    }
    return Status();
  }

  Status Save() {
    const UniqueFd directory(open(options_.save_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return client_->SaveWeights(directory.get(), options_.name + ".safetensors", options_.steps);
  }

  const ThinOptions& options_;
  const shm::JobSpec spec_;
  const std::unique_ptr<MemClient> client_;
  ThinBlocks* const blocks_;
  const uint64_t block_bytes_;
  SteadyClock clock_;
};

}  // namespace

shm::JobSpec SpecOf(const ThinOptions& options) {
  shm::JobSpec spec;
  spec.name = options.name;
  spec.world = options.world;
  spec.dtype = options.dtype;
  spec.optimizer = options.optimizer;
  spec.max_grad_norm = 1.0F;
  spec.micro_batches = options.micro_batches;
  spec.states_on_gpu = options.states_on_gpu;
  spec.rcache_bytes =
      RoundUp((options.frozen_chunks > 0 ? 3 : 2) * options.chunk_elements * 4, kPageBytes);
  spec.parameter_groups = {{1.0F, 0.1F}, {1.0F, 0.0F}};
  spec.data_groups = {{options.world == 64 ? ~uint64_t{0} : (uint64_t{1} << options.world) - 1}};
  for (uint32_t i = 0; i < options.chunks; ++i) {
    spec.chunks.push_back({options.chunk_elements, 0});
    const uint64_t bias = options.chunk_elements - 32;
    spec.parameters.push_back({"layer" + std::to_string(i) + ".weight", {bias}, i, 0, 0, bias});
    spec.parameters.push_back({"layer" + std::to_string(i) + ".bias", {32}, i, 1, bias, 32});
  }
  for (uint32_t i = 0; i < options.frozen_chunks; ++i) {
    spec.frozen.push_back({options.chunk_elements, spec.dtype, HashOf(FrozenContent(options, i))});
  }
  return spec;
}

std::vector<std::byte> FrozenContent(const ThinOptions& options, size_t index) {
  std::vector<std::byte> content(options.chunk_elements * BytesOf(options.dtype));
  for (uint64_t i = 0; i < options.chunk_elements; ++i) {
    WriteElement(content.data(), options.dtype, i,
                 Noise(options.frozen_seed + 1'000'000, index, i));
  }
  return content;
}

Result<ThinResult> RunThinJob(const ThinOptions& options) {
  client::ClientOptions connect;
  connect.clock = RealClock();
  connect.socket_dir = options.socket_dir;
  connect.wait_timeout_ns = options.wait_timeout_ns;
  connect.connect_timeout_ns = options.connect_timeout_ns;
  connect.server_timeout_ns = options.server_timeout_ns;
  connect.queue_timeout_ns = options.queue_timeout_ns;
  connect.attach_retry = options.persistent;
  for (;;) {
    auto blocks = std::make_unique<ThinBlocks>();
    if (options.gpu) {
      TP_ASSIGN_OR_RETURN(ThinGpu gpu, options.gpu());
      TP_ASSIGN_OR_RETURN(blocks, ThinBlocks::Bring(std::move(gpu), SpecOf(options).rcache_bytes));
      connect.brought = blocks->brought();
    }
    connect.on_wait = [&options, there = blocks.get()](const std::string& line) {
      if (line.starts_with("memserver has ended")) there->ServerHasEnded();
      if (options.on_wait) options.on_wait(line);
    };
    TP_ASSIGN_OR_RETURN(std::unique_ptr<MemClient> client,
                        MemClient::Connect(connect, SpecOf(options), options.rank));
    ThinRank rank(options, std::move(client), blocks.get());
    ThinResult result;
    const Status trained = rank.Train(&result);
    if (trained.ok()) return result;
    if (!options.persistent || trained.id() != ErrorId::kPeerLost) return trained;
  }
}

}  // namespace tidepool::testing
