// ServedJob: a job of equal chunks with all its ranks in this process, for benchmarks of the serve
// loop.
//
// One thread drives all ranks. The chunks contain zeros; each is one parameter shared by all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/mem_client.h"
#include "shm/spec/job_spec.h"

namespace tidepool::bench {

// The shape of the job.
struct JobShape {
  std::string name;
  uint32_t chunks = 1;
  uint64_t chunk_elements = 1024;  // fp32; a multiple of 16 x world
  uint32_t world = 1;
  uint64_t rcache_bytes = 64 * 1024;  // per rank; at least one shard
  // How long a waiting rank spins: request benchmarks do not wait for a client's wake-up, step
  // benchmarks leave the CPU to the server.
  int64_t spin_ns = 10 * kNsPerSecond;
};
// The specification with which ranks attach.
shm::JobSpec SpecOf(const JobShape& shape);
// The job's pool size, in the form of --pool.
std::string PoolFlagOf(const JobShape& shape);

class ServedJob {
 public:
  // Attaches every rank and puts the weights. Ends the program on any error, like all calls.
  ServedJob(const JobShape& shape, const std::string& socket_dir);

  // Number of ranks.
  uint32_t world() const { return static_cast<uint32_t>(ranks_.size()); }
  client::MemClient& rank(uint32_t rank) { return *ranks_[rank]; }
  Version version() const { return version_; }
  // Seconds in the last Step from the request that ended it until every chunk was updated.
  double update_seconds() const { return update_seconds_; }
  // Runs one step of a job of one rank: fetches every chunk, submits every gradient, ends the step,
  // and waits until every chunk is updated.
  void Step();
  // Sends the smallest request once per chunk: fetches its first `elements`.
  void FetchFirst(uint64_t elements);
  // Ends all sessions.
  void Detach();

 private:
  client::Range Shard(uint32_t chunk, uint32_t rank) const;

  SteadyClock clock_;
  const JobShape shape_;
  std::vector<std::unique_ptr<client::MemClient>> ranks_;
  Version version_ = 0;
  double update_seconds_ = 0;
};

}  // namespace tidepool::bench
