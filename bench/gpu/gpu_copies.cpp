#include "bench/gpu/gpu_copies.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/system/system_memory.h"
#include "base/units.h"
#include "bench/gpu/gpu_plain.h"
#include "bench/harness/rounds.h"
#include "memserver/residency/pool/host_pool.h"
#include "optim/adam_stream.h"
#include "optim/update_rule.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kSizes[] = {64 * kKiB, 256 * kKiB, kMiB,      4 * kMiB,
                               16 * kMiB, 64 * kMiB,  256 * kMiB};
// Most copies per measurement: the cost of small copies depends on their number, not on bytes.
constexpr uint64_t kCopiesMax = 1024;

std::string NameOfSize(uint64_t bytes) {
  return bytes % kMiB == 0 ? std::to_string(bytes / kMiB) + " MiB"
                           : std::to_string(bytes / kKiB) + " KiB";
}

std::unique_ptr<memserver::HostPool> ReservePool(uint64_t bytes) {
  memserver::HostPoolOptions options;
  options.bytes = bytes;
  return OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
}

// A buffer per direction on either side, and how to copy between them.
struct Ends {
  // host_out is copied to the GPU, host_in from it.
  std::byte *host_out = nullptr, *host_in = nullptr;
  std::byte *gpu_in = nullptr, *gpu_out = nullptr;
};

// Copies by the product's streams.
class OurWay {
 public:
  OurWay(device::CudaDevice* device, const Ends& ends)
      : ends_(ends), to_(OrDie(device->OpenStream())), from_(OrDie(device->OpenStream())) {}
  void Run(uint64_t size, uint64_t copies, bool to, bool from) {
    for (uint64_t i = 0; i < copies; ++i) {
      if (to) to_->Copy(ends_.gpu_in + i * size, ends_.host_out + i * size, size);
      if (from) from_->Copy(ends_.host_in + i * size, ends_.gpu_out + i * size, size);
    }
    if (to) to_->Synchronize(to_->Record());
    if (from) from_->Synchronize(from_->Record());
    OrDie(to_->status());
    OrDie(from_->status());
  }

 private:
  const Ends ends_;
  const std::unique_ptr<device::Stream> to_, from_;
};

class PlainWay {
 public:
  PlainWay(PlainGpu* gpu, const Ends& ends)
      : ends_(ends), to_(gpu->OpenStream()), from_(gpu->OpenStream()) {}
  void Run(uint64_t size, uint64_t copies, bool to, bool from) {
    for (uint64_t i = 0; i < copies; ++i) {
      if (to) to_->Copy(ends_.gpu_in + i * size, ends_.host_out + i * size, size);
      if (from) from_->Copy(ends_.host_in + i * size, ends_.gpu_out + i * size, size);
    }
    if (to) to_->Synchronize();
    if (from) from_->Synchronize();
  }

 private:
  const Ends ends_;
  const std::unique_ptr<PlainStream> to_, from_;
};

struct Direction {
  const char* name;
  bool to, from;
};
constexpr Direction kDirections[] = {
    {"to the GPU", true, false}, {"from the GPU", false, true}, {"both ways at once", true, true}};

void MeasureSize(uint64_t size, const GpuSetup& setup, OurWay* ours, PlainWay* plain,
                 RowPrinter* printer) {
  const uint64_t copies = std::clamp<uint64_t>(setup.copy_bytes / size, 1, kCopiesMax);
  for (const Direction& direction : kDirections) {
    Rounds rounds;
    rounds.AddWay([&] { ours->Run(size, copies, direction.to, direction.from); });
    rounds.AddWay([&] { plain->Run(size, copies, direction.to, direction.from); });
    rounds.Run(setup.rounds);

    const double bytes =
        static_cast<double>(size * copies) * (direction.to && direction.from ? 2 : 1);
    const std::string row = "copies of " + NameOfSize(size) + " " + direction.name;
    printer->Add({.bench = "gpu",
                  .row = row + ", plain",
                  .value = bytes / rounds.median(1) / 1e9,
                  .unit = "GB/s",
                  .against = "",
                  .ratio = {},
                  .target = {}});

    AddComparison({.bench = "gpu",
                   .row = row + ", registered pool memory",
                   .value = bytes / rounds.median(0) / 1e9,
                   .unit = "GB/s",
                   .against = PlainGpu::HasPinned() ? "plain copies, memory of cuMemHostAlloc"
                                                    : "plain copies of the same memory",
                   .ratios = rounds.Faster(0, 1),
                   .dropped = rounds.dropped(),
                   .target = {}},
                  printer);
  }
}

}  // namespace

void MeasureCopies(const GpuSetup& setup, RowPrinter* printer) {
  const uint64_t bytes = std::max(setup.copy_bytes, kSizes[0]);
  PlainGpu plain_gpu(*setup.device);

  const auto pool = ReservePool(2 * bytes);
  std::vector<memserver::Extent> extents;
  if (!pool->Take(std::array{bytes, bytes}, &extents))
    Die("the pool does not hold what it was made for");

  const auto registered_out = OrDie(setup.device->Register(extents[0].data, bytes));
  const auto registered_in = OrDie(setup.device->Register(extents[1].data, bytes));
  UniqueFd exported[2];
  const auto gpu_in = OrDie(setup.device->CreateExportable(bytes, &exported[0]));
  const auto gpu_out = OrDie(setup.device->CreateExportable(bytes, &exported[1]));

  const Ends ours_ends = {extents[0].data, extents[1].data, gpu_in->data(), gpu_out->data()};
  Ends plain_ends = ours_ends;
  std::unique_ptr<PinnedBytes> pinned_out, pinned_in;
  std::unique_ptr<GpuBytes> plain_in = plain_gpu.TakeGpu(bytes),
                            plain_out = plain_gpu.TakeGpu(bytes);
  plain_ends.gpu_in = plain_in->data();
  plain_ends.gpu_out = plain_out->data();

  if (PlainGpu::HasPinned()) {
    pinned_out = plain_gpu.TakePinned(bytes);
    pinned_in = plain_gpu.TakePinned(bytes);
    plain_ends.host_out = pinned_out->data();
    plain_ends.host_in = pinned_in->data();
    std::fill_n(pinned_out->data(), bytes, std::byte{1});
  }

  OurWay ours(setup.device, ours_ends);
  PlainWay plain(&plain_gpu, plain_ends);
  for (const uint64_t size : kSizes) {
    if (size <= bytes) MeasureSize(size, setup, &ours, &plain, printer);
  }

  printer->Add({.bench = "gpu",
                .row = "copies of memory that was not registered",
                .value = static_cast<double>(setup.device->unregistered_copies()),
                .unit = "copies",
                .against = "",
                .ratio = {},
                .target = {}});
}

void MeasurePoolStart(const GpuSetup& setup, RowPrinter* printer) {
  PlainGpu plain_gpu(*setup.device);
  const double gib = static_cast<double>(setup.pool_bytes) / static_cast<double>(kGiB);
  std::vector<double> touched, registered, unregistered, ratios;
  const SteadyClock clock;

  for (uint64_t round = 0; round < 3; ++round) {
    const int64_t begin = clock.NowNs();
    const auto pool = ReservePool(setup.pool_bytes);
    const int64_t reserved = clock.NowNs();
    std::vector<memserver::Extent> extents;
    if (!pool->Take(std::array{setup.pool_bytes}, &extents))
      Die("the pool does not hold what it was made for");

    auto registration = OrDie(setup.device->Register(extents[0].data, setup.pool_bytes));
    const int64_t ready = clock.NowNs();
    registration.reset();
    unregistered.push_back(static_cast<double>(clock.NowNs() - ready) / 1e9 / gib);
    touched.push_back(static_cast<double>(reserved - begin) / 1e9 / gib);
    registered.push_back(static_cast<double>(ready - reserved) / 1e9 / gib);

    if (!PlainGpu::HasPinned()) continue;
    const int64_t before = clock.NowNs();
    const auto pinned = plain_gpu.TakePinned(setup.pool_bytes);
    ratios.push_back(static_cast<double>(clock.NowNs() - before) /
                     static_cast<double>(ready - begin));
  }

  const auto add = [printer](const char* row, double value) {
    printer->Add({.bench = "gpu",
                  .row = row,
                  .value = value,
                  .unit = "s/GiB",
                  .against = "",
                  .ratio = {},
                  .target = {}});
  };

  add("pool reserved and touched", Median(touched));
  add("pool registered", Median(registered));
  add("pool given back by the driver", Median(unregistered));
  if (ratios.empty()) return;

  AddComparison({.bench = "gpu",
                 .row = "pool reserved, touched and registered",
                 .value = Median(touched) + Median(registered),
                 .unit = "s/GiB",
                 .against = "cuMemHostAlloc of as much",
                 .ratios = ratios,
                 .target = 4},
                printer);
}

void MeasureAdam(const GpuSetup& setup, RowPrinter* printer) {
  PlainGpu gpu(*setup.device);
  // Each element takes 16 bytes, plus 14 for the copy.
  const uint64_t fits = OrDie(setup.device->MemoryBytes()).free / 40;
  const uint64_t elements = std::min(setup.adam_elements, fits) / 64 * 64;
  const auto planes = gpu.TakeGpu(elements * 16);
  const auto stream = gpu.OpenStream();
  stream->Fill(planes->data(), elements * 16);
  const auto ours = setup.device->Borrow(stream->native());

  optim::UpdateSpan span;
  span.master = planes->data();
  span.momentum = planes->data() + 4 * elements;
  span.variance = planes->data() + 8 * elements;
  span.gradient = planes->data() + 12 * elements;
  span.param16 = planes->data() + 14 * elements;
  span.gradient_dtype = span.param16_dtype = DType::kBF16;
  span.count = elements;

  const optim::StepFactors factors = optim::MakeFactors({}, {.lr = 1e-3}, {});
  const Status first = optim::EnqueueAdam(ours.get(), factors, span);
  if (!first.ok()) {
    std::fprintf(stderr, "bench_gpu: no row of the Adam kernel: %s\n", first.Line().c_str());
    return;
  }
  // Both move 28 bytes per element: the copy reads and writes 14.
  const auto copied = gpu.TakeGpu(14 * elements);
  Rounds rounds;
  rounds.AddWay([&] {
    OrDie(optim::EnqueueAdam(ours.get(), factors, span));
    stream->Synchronize();
  });
  rounds.AddWay([&] {
    stream->Copy(copied->data(), planes->data(), 14 * elements);
    stream->Synchronize();
  });

  rounds.Run(3 * setup.rounds);
  AddComparison({.bench = "gpu",
                 .row = "AdamW kernel, bf16 gradient and copy, " + std::to_string(elements >> 20) +
                        " Mi elements",
                 .value = 28.0 * static_cast<double>(elements) / rounds.median(0) / 1e9,
                 .unit = "GB/s",
                 .against = "a copy inside the GPU",
                 .ratios = rounds.Faster(0, 1),
                 .dropped = rounds.dropped(),
                 .target = 0.85},
                printer);
}

}  // namespace tidepool::bench
