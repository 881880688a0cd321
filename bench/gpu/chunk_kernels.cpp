#include "bench/gpu/chunk_kernels.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "base/system/system_memory.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "device/host/copy_bytes.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "optim/update_rule.h"

namespace tidepool::bench {
namespace {

// Chunks per claim: a claim costs nothing, and threads end together.
constexpr uint64_t kAtOnce = 16;

double ThreadCpuSeconds() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) Die("the system does not tell a thread's CPU time");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

ChunkKernels::ChunkKernels(uint64_t chunks, uint64_t elements, Crew* crew)
    : crew_(crew),
      chunks_(chunks),
      elements_(elements),
      plane_bytes_(RoundUp(elements * sizeof(float), kPageBytes)),
      rcache_(crew->size() * plane_bytes_),
      progress_(chunks),
      norm_sums_(chunks),
      areas_(2 * crew->size()),
      factors_(
          optim::MakeFactors({}, {.lr = 1e-4, .optimizer_step = 10, .gradient_scale = 1.0F}, {})),
      whole_{.begin = 0, .count = elements} {
  // The planes of all chunks are contiguous in the pool.
  memserver::HostPoolOptions options;
  options.bytes = chunks * kPlanes * plane_bytes_;
  pool_ = OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
  std::vector<memserver::Extent> extents;
  if (!pool_->Take(std::array{options.bytes}, &extents))
    Die("the pool does not hold the planes that it was made for");
  planes_ = extents[0].data;

  for (uint32_t i = 0; i < crew->size(); ++i) {
    workers_.push_back(std::make_unique<memserver::Worker>(
        optim::SelectKernels(optim::BestIsa()),
        std::span<optim::UndoArea, 2>(&areas_[uint64_t{2} * i], 2)));
  }
}

template <typename Task>
double ChunkKernels::ForEach(Task task) {
  std::atomic<uint64_t> next{0};
  std::vector<double> seconds(crew_->size());

  crew_->Run([&](uint32_t thread) {
    const optim::FlushDenormals mode;
    const double before = ThreadCpuSeconds();
    for (uint64_t begin = next.fetch_add(kAtOnce); begin < chunks_;
         begin = next.fetch_add(kAtOnce)) {
      const uint64_t end = std::min(begin + kAtOnce, chunks_);
      for (uint64_t chunk = begin; chunk < end; ++chunk) task(thread, chunk);
    }
    seconds[thread] = ThreadCpuSeconds() - before;
  });
  // The system counts microseconds: round shorter times up to one.
  return std::max(std::accumulate(seconds.begin(), seconds.end(), 0.0), 1e-6);
}

memserver::Work ChunkKernels::WorkOn(uint64_t chunk, memserver::WorkKind kind) {
  memserver::Work work;
  work.name.kind = kind;
  work.runs = std::span(&whole_, 1);
  work.from = At(kGradient, chunk);
  work.norm_sums = &norm_sums_[chunk];

  work.planes.master = At(kMaster, chunk);
  work.planes.momentum = At(kMomentum, chunk);
  work.planes.variance = At(kVariance, chunk);
  work.planes.gradient = At(kGradient, chunk);
  work.planes.count = elements_;

  work.factors = {.all = &factors_};
  work.progress = &progress_[chunk].word;
  work.identity = chunk + 1;
  work.version = version_;
  return work;
}

double ChunkKernels::StepSeconds() {
  ++version_;
  const uint64_t bytes = elements_ * sizeof(float);
  double seconds = ForEach([&](uint32_t thread, uint64_t chunk) {
    device::CopyBytes(&rcache_[thread * plane_bytes_], At(kMaster, chunk), bytes, bytes);
  });

  seconds += ForEach([&](uint32_t thread, uint64_t chunk) {
    device::CopyBytes(At(kGradient, chunk), &rcache_[thread * plane_bytes_], bytes, bytes);
    workers_[thread]->Do(WorkOn(chunk, memserver::WorkKind::kScan));
  });

  seconds += ForEach([&](uint32_t thread, uint64_t chunk) {
    workers_[thread]->Do(WorkOn(chunk, memserver::WorkKind::kUpdate));
  });

  return seconds;
}

}  // namespace tidepool::bench
