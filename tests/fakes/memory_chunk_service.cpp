#include "tests/fakes/memory_chunk_service.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "base/units.h"

namespace tidepool::testing {
namespace {

Status Violation(const std::string& what) {
  return Status(ErrorId::kProtocolViolation, what);
}

}  // namespace

MemoryServer::MemoryServer(const trainer::ChunkLayout* layout) : layout_(layout) {
  for (const trainer::ChunkPlace& chunk : layout->chunks) values.emplace_back(chunk.elements, 0.0f);
  gradients_ = values;
  put_.assign(layout->world, std::vector<uint64_t>(layout->chunks.size(), 0));
}

Status MemoryServer::CheckShard(Rank rank, const client::Range& range) const {
  if (range.chunk >= values.size() || !layout_->IsMember(range.chunk, rank))
    return Violation("not a chunk of this rank");
  const uint64_t shard = layout_->ShardElements(range.chunk);
  if (range.element_count != shard ||
      range.element_begin != layout_->ShardIndex(range.chunk, rank) * shard)
    return Violation("not the shard");
  return {};
}

Status MemoryServer::Put(Rank rank, const client::Range& range, const float* from) {
  std::lock_guard lock(mutex_);
  if (layout_->chunks[range.chunk].frozen) return Violation("weights of a frozen chunk");
  const uint64_t shard = layout_->ShardElements(range.chunk),
                 begin = layout_->ShardIndex(range.chunk, rank) * shard;
  uint64_t& put = put_[rank][range.chunk];
  if (range.element_begin != begin + put || put + range.element_count > shard)
    return Violation("weights with a gap");
  put += range.element_count;
  std::copy_n(from, range.element_count,
              values[range.chunk].begin() + static_cast<std::ptrdiff_t>(range.element_begin));
  changed_.notify_all();
  return {};
}

bool MemoryServer::AllPut() const {
  for (Rank rank = 0; rank < layout_->world; ++rank) {
    for (ChunkId chunk = 0; chunk < layout_->chunks.size(); ++chunk) {
      if (layout_->chunks[chunk].frozen || !layout_->IsMember(chunk, rank)) continue;
      if (put_[rank][chunk] < layout_->ShardElements(chunk)) return false;
    }
  }
  return true;
}

Status MemoryServer::WaitPut() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return AllPut() || broken_; });
  return AllPut() ? Status() : Status(ErrorId::kPeerLost, "another rank has failed");
}

bool MemoryServer::Exists(Version wanted) {
  std::lock_guard lock(mutex_);
  return version >= wanted || broken_;
}

Status MemoryServer::WaitVersion(Version wanted) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return version >= wanted || broken_; });
  if (version < wanted) return Status(ErrorId::kPeerLost, "another rank has failed");
  return version == wanted ? Status() : Violation("a version that is gone");
}

Status MemoryServer::Fetch(Rank rank, const client::Range& range, Version wanted, float* to) {
  // Any part of a chunk of the rank's groups, as the real server gives it.
  if (range.chunk >= values.size() || !layout_->IsMember(range.chunk, rank))
    return Violation("not a chunk of this rank");
  if (range.element_begin + range.element_count > values[range.chunk].size())
    return Violation("not inside the chunk");
  std::lock_guard lock(mutex_);
  if (version != wanted && !layout_->chunks[range.chunk].frozen)
    return Violation("version " + std::to_string(wanted) + " is not the present one");
  std::copy_n(values[range.chunk].begin() + static_cast<std::ptrdiff_t>(range.element_begin),
              range.element_count, to);
  return {};
}

Status MemoryServer::Submit(Rank rank, const client::Range& range, Version from_version,
                            uint32_t micro_batch, const float* from) {
  TP_RETURN_IF_ERROR(CheckShard(rank, range));
  std::lock_guard lock(mutex_);
  if (layout_->chunks[range.chunk].frozen) return Violation("gradients of a frozen chunk");
  if (version != from_version) return Violation("gradients of another version");
  if (!submitted_.insert({rank, range.chunk, micro_batch}).second)
    return Violation("a chunk was handed in twice");
  if (micro_batch > 0 && !submitted_.count({rank, range.chunk, micro_batch - 1}))
    return Violation("micro-batches out of order");
  for (uint64_t i = 0; i < range.element_count; ++i)
    gradients_[range.chunk][range.element_begin + i] += from[i];
  ++submits;
  return {};
}

void MemoryServer::Break() {
  std::lock_guard lock(mutex_);
  broken_ = true;
  changed_.notify_all();
}

bool MemoryServer::broken() {
  std::lock_guard lock(mutex_);
  return broken_;
}

void MemoryServer::Declare(std::span<const ChunkId> order) {
  std::lock_guard lock(mutex_);
  declared.assign(order.begin(), order.end());
}

Status MemoryServer::EndStep(uint32_t micro_batches) {
  std::lock_guard lock(mutex_);
  if (++ended_ < layout_->world) return {};
  ended_ = 0;
  size_t expected = 0;
  for (ChunkId chunk = 0; chunk < layout_->TrainedChunks(); ++chunk)
    expected += layout_->ShardCount(chunk) * micro_batches;
  if (submitted_.size() != expected)
    return Violation("gradients are missing at the end of the step");
  submitted_.clear();
  for (ChunkId chunk = 0; chunk < values.size(); ++chunk) {
    for (uint64_t i = 0; i < values[chunk].size(); ++i)
      values[chunk][i] -= std::exchange(gradients_[chunk][i], 0.0f);
  }
  ++version;
  changed_.notify_all();
  return {};
}

MemoryChunkService::MemoryChunkService(MemoryServer* server, Rank rank, const Memory& memory)
    : server_(server),
      rank_(rank),
      random_(memory.seed),
      memory_(memory.bytes_before + memory.rcache_bytes + kPageBytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  pages_ = memory_.data() + (RoundUp(address, kPageBytes) - address);
  attachment_.rcache = pages_ + memory.bytes_before;
  attachment_.rcache_bytes = memory.rcache_bytes;
  if (memory.device == nullptr) return;
  UniqueFd exported;
  if (memory.bytes_before > 0)
    registered_ = std::move(memory.device->Register(pages_, memory.bytes_before)).value();
  rcache_ = std::move(memory.device->CreateExportable(memory.rcache_bytes, &exported)).value();
  // On a thread of its own, as a process of its own opens it
  // (tests/fakes/fake_cuda/hardware_queue.h).
  std::thread([&] { copies_ = std::move(memory.device->OpenStream()).value(); }).join();
  attachment_.rcache = rcache_->data();
}

void MemoryChunkService::ReadRange(const client::Range& range, float* to) {
  const std::byte* from = attachment_.rcache + range.rcache_offset;
  if (copies_ == nullptr) return void(std::memcpy(to, from, range.element_count * sizeof(float)));
  copies_->Copy(to, from, range.element_count * sizeof(float));
  copies_->Synchronize(copies_->Record());
}

void MemoryChunkService::WriteRange(const client::Range& range, const float* from) {
  std::byte* to = attachment_.rcache + range.rcache_offset;
  if (copies_ == nullptr) return void(std::memcpy(to, from, range.element_count * sizeof(float)));
  copies_->Copy(to, from, range.element_count * sizeof(float));
  copies_->Synchronize(copies_->Record());
}

Status MemoryChunkService::Take(Request* request) {
  if (last_ + 1 >= fail_from_) return Status(ErrorId::kServerGone, "the server is gone");
  request->delay = random_.Below(delay_max_ + 1);
  const uint64_t element_end =
      request->range.rcache_offset + request->range.element_count * sizeof(float);
  if (element_end > attachment_.rcache_bytes) return Violation("outside of the rCache");
  if (requests_.size() == client::kTicketsMax) return Violation("too many tickets");
  if (request->kind == Kind::kFetch) SpoilRange(request->range);
  return {};
}

void MemoryChunkService::SpoilRange(const client::Range& range) {
  WriteRange(
      range,
      std::vector<float>(range.element_count, std::numeric_limits<float>::quiet_NaN()).data());
}

Result<client::Ticket> MemoryChunkService::Add(Request request) {
  TP_RETURN_IF_ERROR(Take(&request));
  requests_.emplace(++last_, std::move(request));
  in_flight_max_ = std::max<uint64_t>(in_flight_max_, requests_.size());
  return last_;
}

Result<client::Ticket> MemoryChunkService::StartPutWeights(const client::Range& range) {
  return Add({Kind::kPut, range, 0, 0});
}

Result<client::Ticket> MemoryChunkService::StartFetch(const client::Range& range,
                                                      const client::Wanted& wanted) {
  uses_ahead_ = wanted.uses_ahead;
  return Add({Kind::kFetch, range, wanted.version, 0});
}

Result<client::Ticket> MemoryChunkService::StartSubmitGradient(const client::Range& range,
                                                               Version version,
                                                               uint32_t micro_batch) {
  return Add({Kind::kSubmit, range, version, micro_batch});
}

Result<client::Ticket> MemoryChunkService::StartSubmitZeros(const client::Range& range,
                                                            Version version, uint32_t micro_batch) {
  if (!attachment_.takes_zeros) return Violation("this server takes no gradient without bytes");
  return Add({Kind::kZeros, range, version, micro_batch});
}

Result<client::Ticket> MemoryChunkService::StartEndStep(const client::StepEnd&) {
  return Violation("the test ends steps at the server");
}

Status MemoryChunkService::CarryOut(const Request& request) {
  std::vector<float> values(request.range.element_count);
  if (request.kind == Kind::kFetch) {
    TP_RETURN_IF_ERROR(server_->Fetch(rank_, request.range, request.version, values.data()));
    WriteRange(request.range, values.data());
    return {};
  }
  if (request.kind != Kind::kZeros) ReadRange(request.range, values.data());
  if (request.kind == Kind::kPut) return server_->Put(rank_, request.range, values.data());
  return server_->Submit(rank_, request.range, request.version, request.micro_batch, values.data());
}

client::Outcome MemoryChunkService::OutcomeOf(const Request& request) {
  client::Outcome outcome;
  outcome.version = request.version;
  outcome.bytes = request.kind == Kind::kZeros ? 0 : request.range.element_count * sizeof(float);
  return outcome;
}

bool MemoryChunkService::Test(client::Ticket ticket) {
  Request& request = requests_.at(ticket);
  if (request.delay > 0) {
    --request.delay;
    return false;
  }
  return request.kind != Kind::kFetch || server_->Exists(request.version);
}

Result<client::Outcome> MemoryChunkService::Wait(client::Ticket ticket) {
  const Request request = requests_.at(ticket);
  requests_.erase(ticket);
  if (request.kind == Kind::kFetch) TP_RETURN_IF_ERROR(server_->WaitVersion(request.version));
  TP_RETURN_IF_ERROR(CarryOut(request));
  return OutcomeOf(request);
}

Status MemoryChunkService::DeclareSchedule(std::span<const ChunkId> order) {
  server_->Declare(order);
  return {};
}

}  // namespace tidepool::testing
