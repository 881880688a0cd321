// ChunkKernels: a server's byte work in a step, done with the same kernels but without a server:
// copies out every chunk, copies in and scans its gradient, updates its states. Without requests,
// queues and other processes: the least cost of such a step.
//
// One thread, with its Crew, whose threads share each part of the step. fp32 chunks of one
// parameter each, as in ServedJob.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/harness/crew.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/update/worker.h"
#include "optim/undo_tile.h"

namespace tidepool::bench {

class ChunkKernels {
 public:
  // Makes planes of `chunks` x `elements` in its own host pool. Ends the program if memory is
  // short.
  ChunkKernels(uint64_t chunks, uint64_t elements, Crew* crew);
  // Runs one step; returns the crew's total CPU seconds.
  double StepSeconds();

 private:
  enum Plane { kMaster, kMomentum, kVariance, kGradient, kPlanes };
  struct alignas(64) ProgressLine {  // as in kept memory
    optim::ProgressWord word;
  };
  memserver::Work WorkOn(uint64_t chunk, memserver::WorkKind kind);
  // A chunk's planes are contiguous and page-aligned, as in the daemon.
  std::byte* At(Plane plane, uint64_t chunk) const {
    return planes_ + (chunk * kPlanes + plane) * plane_bytes_;
  }
  // Runs task(thread, chunk) for all chunks, in small batches on any free thread; returns the CPU
  // seconds of all threads.
  template <typename Task>
  double ForEach(Task task);

  Crew* const crew_;
  const uint64_t chunks_, elements_;
  const uint64_t plane_bytes_;
  std::unique_ptr<memserver::HostPool> pool_;
  std::byte* planes_ = nullptr;
  // The client's memory: space for one chunk per thread, as for a client that handles chunks one
  // after another.
  std::vector<std::byte> rcache_;
  std::vector<ProgressLine> progress_;
  std::vector<double> norm_sums_;
  std::vector<optim::UndoArea> areas_;
  std::vector<std::unique_ptr<memserver::Worker>> workers_;
  const optim::StepFactors factors_;
  const memserver::ParameterRun whole_;
  uint64_t version_ = 0;
};

}  // namespace tidepool::bench
