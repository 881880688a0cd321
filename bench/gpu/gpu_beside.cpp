#include "bench/gpu/gpu_beside.h"

#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/system/system_memory.h"
#include "base/units.h"
#include "bench/harness/crew.h"
#include "bench/loops/memory_loops.h"
#include "bench/harness/rounds.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kCopyBytes = 64 * kMiB;
constexpr uint64_t kAlign = 4096;

// Keeps a stream busy in each direction.
class BothEngines {
 public:
  BothEngines(device::CudaDevice* device, std::byte* host)
      : host_(host),
        registration_(OrDie(device->Register(host, 2 * kCopyBytes))),
        gpu_(OrDie(device->CreateExportable(2 * kCopyBytes, &exported_))),
        to_(OrDie(device->OpenStream())),
        from_(OrDie(device->OpenStream())) {}

  void Start(uint64_t copies) {
    for (uint64_t i = 0; i < copies; ++i) {
      to_->Copy(gpu_->data(), host_, kCopyBytes);
      from_->Copy(host_ + kCopyBytes, gpu_->data() + kCopyBytes, kCopyBytes);
    }
    to_mark_ = to_->Record();
    from_mark_ = from_->Record();
  }
  bool BothStillRun() { return !to_->Passed(to_mark_) && !from_->Passed(from_mark_); }
  void Finish() {
    to_->Synchronize(to_->Record());
    from_->Synchronize(from_->Record());
    OrDie(to_->status());
    OrDie(from_->status());
  }

 private:
  std::byte* const host_;
  UniqueFd exported_;
  const std::unique_ptr<device::Registration> registration_;
  const std::unique_ptr<device::Memory> gpu_;
  const std::unique_ptr<device::Stream> to_, from_;
  device::Stream::Marker to_mark_ = 0, from_mark_ = 0;
};

}  // namespace

void MeasureMemoryBeside(const GpuSetup& setup, RowPrinter* printer) {
  memserver::HostPoolOptions options;
  options.bytes = setup.pool_bytes + 2 * kCopyBytes;
  const auto pool = OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
  std::vector<memserver::Extent> extents;
  if (!pool->Take(std::array{setup.pool_bytes, 2 * kCopyBytes}, &extents))
    Die("the pool does not hold what it was made for");

  BothEngines engines(setup.device, extents[1].data);
  Crew crew;
  const MemoryLoops& loops = SelectLoops();

  const auto modify = [&] {
    crew.Run([&](uint32_t i) {
      const auto [begin, end] = crew.Share(i, setup.pool_bytes, kAlign);
      loops.modify(extents[0].data + begin, end - begin, 0);
    });
  };
  // More copies than fit into the time of changing the memory, even at a link's maximum of 64 GB/s
  // and if it took three times as long.
  SteadyClock clock;
  const int64_t begin = clock.NowNs();
  modify();
  const double alone = static_cast<double>(clock.NowNs() - begin) / 1e9;
  const auto copies = static_cast<uint64_t>(3 * alone * 64e9 / static_cast<double>(kCopyBytes)) + 1;

  uint64_t ended_early = 0;
  Rounds rounds;
  const size_t beside = rounds.AddWay(
      [&] {
        modify();
        ended_early += engines.BothStillRun() ? 0 : 1;
      },
      [&] {
        engines.Finish();
        engines.Start(copies);
      });

  const size_t by_itself = rounds.AddWay(modify, [&] { engines.Finish(); });
  rounds.Run(setup.rounds);
  engines.Finish();

  if (ended_early > 0) {
    std::fprintf(stderr,
                 "bench_gpu: in %llu rounds the copies ended before the memory was changed; the "
                 "row beside copies says too much\n",
                 static_cast<unsigned long long>(ended_early));
  }

  AddComparison({.bench = "gpu",
                 .row = "host memory changed in place, by all CPUs, while it is copied both ways",
                 .value = 2 * static_cast<double>(setup.pool_bytes) / rounds.median(beside) / 1e9,
                 .unit = "GB/s",
                 .against = "the same alone",
                 .ratios = rounds.Faster(beside, by_itself),
                 .dropped = rounds.dropped(),
                 .target = {}},
                printer);
}

}  // namespace tidepool::bench
