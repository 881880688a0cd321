// ChunkKernels: the work on bytes that a step gives a server, by the kernels that it calls and
// without the server: every chunk copied out, its gradient copied in and scanned, its states
// updated. No requests, no queues, no other process: the least that such a step can cost.
//
// One thread, with its Crew, whose threads share each part of the step. fp32 chunks of one
// parameter each, as ServedJob has them.
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
  // Makes planes of `chunks` x `elements` in a host pool of its own. Ends the program where the
  // memory is short.
  ChunkKernels(uint64_t chunks, uint64_t elements, Crew* crew);
  // Does one step; returns the CPU seconds that the crew's threads took for it together.
  double StepSeconds();

 private:
  enum Plane { kMaster, kMomentum, kVariance, kGradient, kPlanes };
  struct alignas(64) ProgressLine {  // as in kept memory
    optim::ProgressWord word;
  };
  memserver::Work WorkOn(uint64_t chunk, memserver::WorkKind kind);
  // A chunk's planes lie behind each other and begin on pages, as in the daemon.
  std::byte* At(Plane plane, uint64_t chunk) const {
    return planes_ + (chunk * kPlanes + plane) * plane_bytes_;
  }
  // Runs task(thread, chunk) for all chunks, a few at a time on any free thread; returns the CPU
  // seconds of all threads.
  template <typename Task>
  double ForEach(Task task);

  Crew* const crew_;
  const uint64_t chunks_, elements_;
  const uint64_t plane_bytes_;
  std::unique_ptr<memserver::HostPool> pool_;
  std::byte* planes_ = nullptr;
  // The client's memory: one chunk's place for each thread, as for a client that takes one chunk
  // after the other.
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
