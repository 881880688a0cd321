#include "bench/gpu/gpu_done.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/gpu/gpu_plain.h"
#include "bench/loops/matrix_loop.h"
#include "bench/gpu/pushed_job.h"
#include "bench/harness/rounds.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kChunkBytes = 4 * kMiB;
constexpr uint64_t kFetches = 200;  // per round, sequential
constexpr uint64_t kSide = 8192;    // of the matrices
constexpr uint64_t kProductsAhead = 20;

// Runs products on a thread, one after another, until destruction.
class Multiplier {
 public:
  Multiplier(const GpuSetup& setup, MatrixLoop* products)
      : thread_([this, &setup, products] {
          const PlainGpu current(*setup.device);
          while (!stop_.load(std::memory_order_acquire)) {
            (void)products->Seconds(kProductsAhead);
            runs_.store(true, std::memory_order_release);
          }
        }) {
    while (!runs_.load(std::memory_order_acquire)) std::this_thread::yield();
  }
  ~Multiplier() {
    stop_.store(true, std::memory_order_release);
    thread_.join();
  }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

 private:
  std::atomic<bool> stop_{false}, runs_{false};
  std::thread thread_;  // last, because it uses the above
};

struct Figures {
  std::vector<double> rates, latencies;
};

void Measure(const GpuSetup& setup, PushedJob* job, Figures* figures) {
  const SteadyClock clock;
  const double bytes = static_cast<double>(kChunkBytes * job->chunks());
  for (uint64_t round = 0; round < setup.rounds; ++round) {
    const int64_t begin = clock.NowNs();
    job->Run(true, false);
    figures->rates.push_back(bytes / static_cast<double>(clock.NowNs() - begin));
    for (uint64_t i = 0; i < kFetches; ++i)
      figures->latencies.push_back(job->FetchSeconds(static_cast<uint32_t>(i % job->chunks())));
  }
}

void AddLatencies(const std::string& row, const Figures& figures, RowPrinter* printer) {
  for (const auto& [name, share] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}}) {
    printer->Add({.bench = "gpu",
                  .row = row + ", `done` " + name,
                  .value = Percentile(figures.latencies, share) * 1e6,
                  .unit = "us",
                  .against = "",
                  .ratio = {},
                  .target = {}});
  }
}

void MeasureWay(const GpuSetup& setup, const std::string& way, MatrixLoop* products,
                RowPrinter* printer) {
  PushedJob job(setup.device, kChunkBytes, std::max<uint64_t>(1, setup.copy_bytes / kChunkBytes),
                {"--gpu-done", way});
  const std::string row = "fetches of 4 MiB chunks, `done` by the " + way;
  Figures alone, beside;
  Measure(setup, &job, &alone);

  printer->Add({.bench = "gpu",
                .row = row + ", copy rate",
                .value = Median(alone.rates),
                .unit = "GB/s",
                .against = "",
                .ratio = {},
                .target = {}});

  AddLatencies(row, alone, printer);
  if (products == nullptr) return;

  {
    const Multiplier multiplier(setup, products);
    Measure(setup, &job, &beside);
  }

  std::vector<double> ratios;
  for (size_t i = 0; i < beside.rates.size(); ++i)
    ratios.push_back(beside.rates[i] / alone.rates[i]);

  AddComparison({.bench = "gpu",
                 .row = row + " beside matrix products, copy rate",
                 .value = Median(beside.rates),
                 .unit = "GB/s",
                 .against = "the same alone",
                 .ratios = ratios,
                 .target = {}},
                printer);

  AddLatencies(row + " beside matrix products", beside, printer);
}

}  // namespace

void MeasureDone(const GpuSetup& setup, RowPrinter* printer) {
  PlainGpu gpu(*setup.device);
  auto made = MatrixLoop::Make(&gpu, kSide);
  if (!made.ok())
    std::fprintf(stderr, "bench_gpu: no rows of `done` beside matrix products: %s\n",
                 made.status().Line().c_str());
  for (const char* way : {"stream", "loop"})
    MeasureWay(setup, way, made.ok() ? made->get() : nullptr, printer);
}

}  // namespace tidepool::bench
