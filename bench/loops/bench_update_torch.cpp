// bench_update_torch: the optimizer's pass over host memory compared with torch's fused AdamW on
// the CPU, and with DeepSpeed's CPUAdam if it was built (bench/peers/deepspeed), each with the
// conversions needed for bf16 parameters and gradients.
//
// All in one process, on the same planes and with as many threads, alternating. A pause between two
// ways lets OpenMP's threads stop spinning.
#include <dlfcn.h>

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/clock.h"
#include "bench/harness/crew.h"
#include "bench/peers/deepspeed_adam.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "bench/loops/update_ways.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kMi = 1 << 20;
constexpr double kUpdateBytes = 28, kSmallBytes = 18, kProbeBytes = 24;  // per parameter
constexpr uint64_t kProbeAhead = 1024;
constexpr int64_t kSettleNs = 20 * kNsPerMs;
constexpr const char* kHelp =
    "bench_update_torch [--json FILE] [--parameters MI] [--rounds N] [--deepspeed LIBRARY]\n"
    "The AdamW pass over host memory against torch's fused AdamW on the CPU, with and without the "
    "conversions to and from bf16, and\n"
    "against DeepSpeed's CPUAdam from LIBRARY. MI: millions (2^20) of parameters, default 256, at "
    "28 bytes each.\n";

// The planes as tensors.
class TorchPeer {
 public:
  explicit TorchPeer(const UpdateWays& ways) {
    const BenchPlanes& planes = ways.planes();
    const auto view = [&](void* data, at::ScalarType type) {
      return at::from_blob(data, {static_cast<int64_t>(ways.parameters())},
                           at::TensorOptions().dtype(type));
    };

    master_ = view(planes.master, at::kFloat);
    momentum_ = view(planes.momentum, at::kFloat);
    variance_ = view(planes.variance, at::kFloat);
    gradient32_ = view(planes.gradient32, at::kFloat);
    gradient16_ = view(planes.gradient16, at::kBFloat16);
    param16_ = view(planes.param16, at::kBFloat16);
    step_ = at::full({}, 1000.0F);
  }

  void FusedAdamW() {
    step_ += 1;
    at::_fused_adamw_({master_}, {gradient32_}, {momentum_}, {variance_}, {}, {step_}, kBenchLr,
                      0.9, 0.999, kBenchDecay, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  void WidenGradient() { gradient32_.copy_(gradient16_); }
  void NarrowParameters() { param16_.copy_(master_); }
  void ScaleGradient() { gradient32_.mul_(1.0); }

 private:
  at::Tensor master_, momentum_, variance_, gradient32_, gradient16_, param16_, step_;
};

// DeepSpeed's CPUAdam behind a C function, because we do not link its sources.
class DeepSpeedPeer {
 public:
  explicit DeepSpeedPeer(const std::string& library) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) Die(std::string("DeepSpeed's CPUAdam cannot be loaded: ") + dlerror());
    step_ = reinterpret_cast<DeepSpeedAdamStep*>(dlsym(handle, kDeepSpeedAdamStep));
    if (step_ == nullptr) Die(library + " has no function " + kDeepSpeedAdamStep);
  }
  void Step(const UpdateWays& ways) {
    const BenchPlanes& planes = ways.planes();
    step_({planes.master, planes.momentum, planes.variance, planes.gradient32, ways.parameters(),
           ++count_, kBenchLr, kBenchDecay});
  }

 private:
  DeepSpeedAdamStep* step_ = nullptr;
  uint64_t count_ = 1000;
};

struct Plan {
  uint64_t rounds;
  std::string deepspeed;
};

class TorchBench {
 public:
  TorchBench(UpdateWays* ways, RowPrinter* printer)
      : ways_(ways), printer_(printer), torch_(*ways), rounds_(kSettleNs) {}

  void Run(const Plan& plan) {
    ways_->Fill({});
    half_ = rounds_.AddWay([&] { ways_->UpdateSafe(ways_->parameters()); });
    f32_ = rounds_.AddWay([&] { ways_->UpdateF32(); });
    const size_t small = rounds_.AddWay([&] { ways_->UpdateSmall(); });
    probe_ = rounds_.AddWay([&] { ways_->Probe(0); });
    probe_ahead_ = rounds_.AddWay([&] { ways_->Probe(kProbeAhead); });

    const size_t fused = rounds_.AddWay([&] { torch_.FusedAdamW(); });
    const size_t converted = rounds_.AddWay([&] {
      torch_.WidenGradient();
      torch_.FusedAdamW();
      torch_.NarrowParameters();
    });

    size_t step = 0, passes = 0, emulated = 0;
    if (!plan.deepspeed.empty()) {
      deepspeed_ = std::make_unique<DeepSpeedPeer>(plan.deepspeed);
      step = rounds_.AddWay([&] { deepspeed_->Step(*ways_); });
      passes = rounds_.AddWay([&] {
        torch_.ScaleGradient();
        deepspeed_->Step(*ways_);
        torch_.NarrowParameters();
      });
      emulated = rounds_.AddWay([&] { ways_->DeepSpeedPasses(); });
    }

    rounds_.Run(plan.rounds);
    Add({"update pass, bf16 gradient and copy", half_,
         "torch: fused AdamW, gradient and parameter conversion", converted, 1.9});
    Add({"fp32 update pass", f32_, "torch: fused AdamW", fused, 1.15});

    AddAgainstProbe("torch: fused AdamW, fp32", fused);
    AddMost(kUpdateBytes, "torch: fused AdamW, gradient and parameter conversion", converted);
    AddMost(kUpdateBytes, "torch: fused AdamW", fused);
    AddAgainstMost("update pass, bf16 gradient and copy", half_, kUpdateBytes);
    AddAgainstMost("fp32 update pass", f32_, kUpdateBytes);
    AddAgainstMost("update pass, split master and bf16 moments", small, kSmallBytes);
    if (deepspeed_ == nullptr) return;

    AddAgainstProbe("DeepSpeed's CPUAdam, fp32", step);
    AddMost(kUpdateBytes, "DeepSpeed's host passes: mul_, CPUAdam, copy_", passes);
    AddMost(kSmallBytes, "DeepSpeed's host passes: mul_, CPUAdam, copy_", passes);
    AddMost(kUpdateBytes, "DeepSpeed's CPUAdam", step);

    Add({"update pass, bf16 gradient and copy", half_,
         "DeepSpeed's host passes: mul_, CPUAdam, copy_", passes, 2.0});
    Add({"update pass, split master and bf16 moments", small,
         "DeepSpeed's host passes: mul_, CPUAdam, copy_", passes, 3.0});
    Add({"fp32 update pass", f32_, "DeepSpeed's CPUAdam", step, 1.15});
    Add({"DeepSpeed's host passes, emulated", emulated,
         "DeepSpeed's host passes: mul_, CPUAdam, copy_", passes, std::nullopt});
  }

 private:
  struct Line {
    const char* row;
    size_t way;
    const char* against;
    size_t peer;
    std::optional<double> target;
    double factor = 1;
  };
  void Add(const Line& line) {
    const double rate = static_cast<double>(ways_->parameters()) / rounds_.median(line.way);

    AddComparison({.bench = "update_torch",
                   .row = line.row,
                   .value = rate / 1e9,
                   .unit = "Gparam/s",
                   .against = line.against,
                   .ratios = rounds_.Faster(line.way, line.peer),
                   .dropped = rounds_.dropped(),
                   .factor = line.factor,
                   .target = line.target},
                  printer_);
  }
  // How close a baseline comes to plain loops that change as many bytes.
  void AddAgainstProbe(const char* row, size_t way) {
    Add({row, way, "in-place read-modify-write probe, same pages", probe_, std::nullopt,
         kUpdateBytes / kProbeBytes});
  }
  // The memory's limit: a pass over `bytes` per parameter at the speed of this run's faster probe.
  // Its ratio to a baseline bounds our own ratio; also shows how close our pass comes to it.
  size_t FasterProbe() const { return rounds_.FastestOf({probe_, probe_ahead_}); }
  void AddMost(double bytes, const char* against, size_t peer) {
    const size_t probe = FasterProbe();
    const double rate = static_cast<double>(ways_->parameters()) / rounds_.median(probe);
    const std::string row =
        "the most that the memory allows: " + std::to_string(static_cast<int>(bytes)) +
        " bytes a parameter at the probe's speed";

    AddComparison({.bench = "update_torch",
                   .row = row,
                   .value = rate / 1e9 * kProbeBytes / bytes,
                   .unit = "Gparam/s",
                   .against = against,
                   .ratios = rounds_.Faster(probe, peer),
                   .dropped = rounds_.dropped(),
                   .factor = kProbeBytes / bytes,
                   .target = {}},
                  printer_);
  }
  void AddAgainstMost(const char* row, size_t way, double bytes) {
    Add({row, way, "the most that the memory allows", FasterProbe(), std::nullopt,
         bytes / kProbeBytes});
  }

  UpdateWays* ways_;
  RowPrinter* printer_;
  TorchPeer torch_;
  std::unique_ptr<DeepSpeedPeer> deepspeed_;
  Rounds rounds_;
  size_t half_ = 0, f32_ = 0, probe_ = 0, probe_ahead_ = 0;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t parameters = printer.Number("--parameters", 256) * kMi;
  const Plan plan = {printer.Number("--rounds", 9), printer.Word("--deepspeed", "")};
  printer.NoMoreArguments();
  Crew crew;
  at::set_num_threads(static_cast<int>(crew.size()));
  UpdateWays ways(parameters, &crew);
  const at::NoGradGuard no_grad;
  TorchBench(&ways, &printer).Run(plan);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
