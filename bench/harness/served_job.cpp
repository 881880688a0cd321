#include "bench/harness/served_job.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::bench {
namespace {

constexpr uint32_t kAhead = 256;           // most requests in flight of a rank that does not wait
constexpr uint64_t kPoolSlack = 8 * kMiB;  // in addition to the job's states
constexpr int64_t kStartNs = 300 * kNsPerSecond;

// Requests of one rank, at most kAhead in flight.
class Pipeline {
 public:
  explicit Pipeline(client::MemClient* rank) : rank_(rank) {}
  void Add(Result<client::Ticket> ticket) {
    tickets_.push_back(OrDie(std::move(ticket)));
    if (tickets_.size() == kAhead) TakeOne();
  }
  void Finish() {
    while (!tickets_.empty()) TakeOne();
  }

 private:
  void TakeOne() {
    OrDie(rank_->Wait(tickets_.front()).status());
    tickets_.pop_front();
  }
  client::MemClient* rank_;
  std::deque<client::Ticket> tickets_;
};

}  // namespace

shm::JobSpec SpecOf(const JobShape& shape) {
  shm::JobSpec spec;
  spec.name = shape.name;
  spec.world = shape.world;
  spec.rcache_bytes = shape.rcache_bytes;
  spec.parameter_groups = {{}};
  spec.data_groups = {
      {.rank_mask = shape.world == 64 ? ~uint64_t{0} : (uint64_t{1} << shape.world) - 1}};

  for (uint32_t i = 0; i < shape.chunks; ++i) {
    spec.chunks.push_back({.elements = shape.chunk_elements, .data_group = 0});
    shm::ParameterSpec parameter;
    parameter.name = "w" + std::to_string(i);
    parameter.dims = {shape.chunk_elements};
    parameter.chunk = i;
    parameter.element_count = shape.chunk_elements;
    spec.parameters.push_back(std::move(parameter));
  }

  return spec;
}

std::string PoolFlagOf(const JobShape& shape) {
  return std::to_string(RoundUp(shm::StateBytesOf(SpecOf(shape)).total(), kMiB) + kPoolSlack);
}

ServedJob::ServedJob(const JobShape& shape, const std::string& socket_dir) : shape_(shape) {
  client::ClientOptions options;
  options.clock = &clock_;
  options.socket_dir = socket_dir;
  options.connect_timeout_ns = kStartNs;
  options.spin_ns = shape.spin_ns;

  const shm::JobSpec spec = SpecOf(shape);
  for (Rank rank = 0; rank < shape.world; ++rank)
    ranks_.push_back(OrDie(client::MemClient::Connect(options, spec, rank)));

  for (uint32_t rank = 0; rank < world(); ++rank) {
    std::fill_n(ranks_[rank]->attachment().rcache, shape.rcache_bytes, std::byte{0});
    Pipeline pipeline(ranks_[rank].get());
    for (uint32_t chunk = 0; chunk < shape.chunks; ++chunk)
      pipeline.Add(ranks_[rank]->StartPutWeights(Shard(chunk, rank)));
    pipeline.Finish();
  }
}

client::Range ServedJob::Shard(uint32_t chunk, uint32_t rank) const {
  const uint64_t elements = shape_.chunk_elements / shape_.world;
  return {.chunk = chunk,
          .element_begin = rank * elements,
          .element_count = elements,
          .rcache_offset = 0};
}

void ServedJob::Step() {
  client::MemClient& rank = *ranks_[0];
  Pipeline pipeline(&rank);
  for (uint32_t chunk = 0; chunk < shape_.chunks; ++chunk)
    pipeline.Add(rank.StartFetch(Shard(chunk, 0), version_));
  pipeline.Finish();

  for (uint32_t chunk = 0; chunk < shape_.chunks; ++chunk)
    pipeline.Add(rank.StartSubmitGradient(Shard(chunk, 0), version_, 0));
  pipeline.Finish();

  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  client::StepEnd end;
  end.version = version_;
  end.learning_rate = 1e-4F;
  version_ = OrDie(rank.Wait(OrDie(rank.StartEndStep(end)))).version;
  // Several workers update chunks by ascending number: when the last few have new versions, all
  // updates have ended.
  const uint32_t last = std::min<uint32_t>(shape_.chunks, kAhead);
  for (uint32_t chunk = shape_.chunks - last; chunk < shape_.chunks; ++chunk) {
    client::Range one = Shard(chunk, 0);
    one.element_count = 1;
    pipeline.Add(rank.StartFetch(one, version_));
  }
  pipeline.Finish();
  update_seconds_ = static_cast<double>(clock.NowNs() - begin) / kNsPerSecond;
}

void ServedJob::FetchFirst(uint64_t elements) {
  Pipeline pipeline(ranks_[0].get());
  for (uint32_t chunk = 0; chunk < shape_.chunks; ++chunk) {
    client::Range first = Shard(chunk, 0);
    first.element_count = elements;
    pipeline.Add(ranks_[0]->StartFetch(first, version_));
  }
  pipeline.Finish();
}

void ServedJob::Detach() {
  for (const auto& rank : ranks_) OrDie(rank->Detach());
}

}  // namespace tidepool::bench
