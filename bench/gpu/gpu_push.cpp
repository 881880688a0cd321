#include "bench/gpu/gpu_push.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "bench/gpu/gpu_plain.h"
#include "bench/loops/matrix_loop.h"
#include "bench/gpu/pushed_job.h"
#include "bench/harness/rounds.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kMatrixSide = 8192;
constexpr uint64_t kProducts = 200;  // about 0.3 s on a GPU with 790 TFLOP/s

struct Way {
  const char* name;
  bool to, from;
  double target;
};

// The baseline for pushes: sequential whole chunks, one stream per direction, from memory of
// cuMemHostAlloc.
class PlainLoop {
 public:
  PlainLoop(const GpuSetup& setup, uint64_t bytes)
      : gpu_(*setup.device),
        to_(gpu_.OpenStream()),
        from_(gpu_.OpenStream()),
        there_(gpu_.TakeGpu(2 * bytes)),
        here_(gpu_.TakePinned(2 * bytes)),
        bytes_(bytes) {}
  void Run(uint64_t chunk, bool to, bool from) {
    for (uint64_t at = 0; at + chunk <= bytes_; at += chunk) {
      if (to) to_->Copy(there_->data() + at, here_->data() + at, chunk);
      if (from) from_->Copy(here_->data() + bytes_ + at, there_->data() + bytes_ + at, chunk);
    }
    to_->Synchronize();
    from_->Synchronize();
  }

 private:
  PlainGpu gpu_;
  const std::unique_ptr<PlainStream> to_, from_;
  const std::unique_ptr<GpuBytes> there_;
  const std::unique_ptr<PinnedBytes> here_;
  const uint64_t bytes_;
};

void MeasureChunks(const GpuSetup& setup, uint64_t chunk, PlainLoop* plain, RowPrinter* printer) {
  const uint64_t chunks = setup.copy_bytes / chunk;
  PushedJob job(setup.device, chunk, chunks);
  const double one_way = chunk >= 16 * kMiB ? 0.98 : 0.95;

  for (const Way& way :
       {Way{"to the GPU", true, false, one_way}, Way{"from the GPU", false, true, one_way},
        Way{"both ways at once", true, true, 0.97}}) {
    Rounds rounds;
    rounds.AddWay([&] { job.Run(way.to, way.from); }, [&] { job.EndStep(); });
    if (plain != nullptr) rounds.AddWay([&] { plain->Run(chunk, way.to, way.from); });
    rounds.Run(setup.rounds);

    const double bytes = static_cast<double>(chunk * chunks) * (way.to && way.from ? 2 : 1);
    const std::string row =
        "push of " + std::to_string(chunk / kMiB) + " MiB chunks through memserver, " + way.name;
    const double rate = bytes / rounds.median(0) / 1e9;

    if (plain == nullptr) {
      printer->Add({.bench = "gpu",
                    .row = row,
                    .value = rate,
                    .unit = "GB/s",
                    .against = "",
                    .ratio = {},
                    .target = {}});
      continue;
    }

    AddComparison({.bench = "gpu",
                   .row = row,
                   .value = rate,
                   .unit = "GB/s",
                   .against = "plain copies, memory of cuMemHostAlloc",
                   .ratios = rounds.Faster(0, 1),
                   .dropped = rounds.dropped(),
                   .target = way.to && way.from && chunk < 16 * kMiB ? std::nullopt
                                                                     : std::optional(way.target)},
                  printer);

    job.EndStep();
  }
}

// Products of this process, alone and while the server copies chunks to its memory.
void MeasureBesideProducts(const GpuSetup& setup, RowPrinter* printer) {
  PlainGpu gpu(*setup.device);
  auto made = MatrixLoop::Make(&gpu, kMatrixSide);
  if (!made.ok()) {
    std::fprintf(stderr, "bench_gpu: no row of copies beside matrix products: %s\n",
                 made.status().Line().c_str());
    return;
  }

  MatrixLoop& products = **made;
  constexpr uint64_t kChunk = 16 * kMiB;
  PushedJob job(setup.device, kChunk, std::max<uint64_t>(1, setup.copy_bytes / kChunk));
  std::vector<double> ratios, alone;
  (void)products.Seconds(kProducts);

  for (uint64_t round = 0; round < setup.rounds; ++round) {
    alone.push_back(products.Seconds(kProducts));
    std::atomic<bool> multiplied{false};
    double beside = 0;

    std::thread multiplier([&] {
      const PlainGpu current(*setup.device);
      beside = products.Seconds(kProducts);
      multiplied.store(true, std::memory_order_release);
    });

    while (!multiplied.load(std::memory_order_acquire)) job.Run(true, false);
    multiplier.join();
    ratios.push_back(alone.back() / beside);
  }

  const double flops = static_cast<double>(kProducts) * products.FlopsEach();
  AddComparison({.bench = "gpu",
                 .row = "matrix products (bf16, 8192) while memserver copies chunks to the GPU",
                 .value = flops / Median(alone) * Median(ratios) / 1e12,
                 .unit = "TFLOP/s",
                 .against = "the same products alone",
                 .ratios = ratios,
                 .target = 0.97},
                printer);
}

}  // namespace

void MeasurePush(const GpuSetup& setup, RowPrinter* printer) {
  std::unique_ptr<PlainLoop> plain;
  if (PlainGpu::HasPinned()) {
    plain = std::make_unique<PlainLoop>(setup, setup.copy_bytes);
  } else {
    std::fprintf(stderr,
                 "bench_gpu: this driver has no cuMemHostAlloc; pushes are held against nothing\n");
  }

  for (const uint64_t chunk : {4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    if (2 * chunk <= setup.copy_bytes) MeasureChunks(setup, chunk, plain.get(), printer);
  }
  MeasureBesideProducts(setup, printer);
}

}  // namespace tidepool::bench
