// bench_update: how close the optimizer's pass over host memory comes to the memory's limit, and
// how it compares with the passes of other systems.
//
// All ways run on the same threads, one per CPU, and on the same pages, alternating in one process.
// The passes of DeepSpeed's host path are our own emulation (bench/loops/memory_loops.h), which is
// faster than the original: the targets against the originals are in bench_update_torch.
#include <algorithm>
#include <optional>
#include <string>

#include "bench/harness/crew.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "bench/loops/update_ways.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kMi = 1 << 20;
constexpr double kUpdateBytes = 28, kSmallBytes = 18, kProbeBytes = 24;  // per parameter
constexpr uint64_t kProbeAhead = 1024;
constexpr float kDenormal = 1e-40F, kNormal = 1e-4F;

constexpr const char* kHelp =
    "bench_update [--json FILE] [--parameters MI] [--rounds N]\n"
    "The AdamW pass over host memory against a read-modify-write probe, against itself without "
    "crash safety, and against three passes.\n"
    "MI: millions (2^20) of parameters, default 256, at 28 bytes each. The rows of planes of other "
    "sizes take up to 128 of them.\n";

struct Size {
  uint64_t parameters, rounds;
};

std::string Described(const char* what) {
  return std::string(what) + ", bf16 gradient and copy, fp32 states";
}

struct ProbeWays {
  size_t plain, ahead;
};

void AddProbeRows(const Rounds& rounds, double gb, const ProbeWays& probes, RowPrinter* printer) {
  printer->Add({.bench = "update",
                .row = "read-modify-write probe",
                .value = gb / rounds.median(probes.plain),
                .unit = "GB/s",
                .against = "",
                .ratio = {},
                .target = {}});

  AddComparison({.bench = "update",
                 .row = "read-modify-write probe with software prefetch",
                 .value = gb / rounds.median(probes.ahead),
                 .unit = "GB/s",
                 .against = "the probe without",
                 .ratios = rounds.Faster(probes.ahead, probes.plain),
                 .dropped = rounds.dropped(),
                 .target = {}},
                printer);
}

// A way of updating, and its bytes moved per parameter.
struct AgainstProbe {
  size_t way;
  std::string row;
  std::optional<double> target;
  double bytes = kUpdateBytes;
};

void AddAgainstProbe(const Rounds& rounds, const AgainstProbe& line, size_t probe, double gparam,
                     RowPrinter* printer) {
  const double rate = gparam / rounds.median(line.way);

  AddComparison({.bench = "update",
                 .row = line.row,
                 .value = rate,
                 .unit = "Gparam/s",
                 .against = "in-place read-modify-write probe, same threads and pages",
                 .ratios = rounds.Faster(line.way, probe),
                 .dropped = rounds.dropped(),
                 .factor = line.bytes / kProbeBytes,
                 .target = line.target},
                printer);
}

void MeasurePasses(UpdateWays* ways, const Size& size, RowPrinter* printer) {
  ways->Fill({});
  Rounds rounds;
  const size_t probe = rounds.AddWay([&] { ways->Probe(0); });
  const size_t safe = rounds.AddWay([&] { ways->UpdateSafe(size.parameters); });
  const size_t plain = rounds.AddWay([&] { ways->UpdatePlain(size.parameters); });
  const size_t team = rounds.AddWay([&] { ways->UpdateByTeam(); });
  const size_t ahead = rounds.AddWay([&] { ways->Probe(kProbeAhead); });

  const size_t passes = rounds.AddWay([&] { ways->DeepSpeedPasses(); });
  const size_t f32 = rounds.AddWay([&] { ways->UpdateF32(); });
  const size_t small = rounds.AddWay([&] { ways->UpdateSmall(); });
  const size_t peer_f32 = rounds.AddWay([&] { ways->DeepSpeedAdam(); });
  const size_t copies = rounds.AddWay([&] { ways->UpdatePart(UndoPart::kCopies); });
  const size_t words = rounds.AddWay([&] { ways->UpdatePart(UndoPart::kWords); });
  const size_t cached_safe = rounds.AddWay([&] { ways->UpdateCached(true); });
  const size_t cached = rounds.AddWay([&] { ways->UpdateCached(false); });
  rounds.Run(size.rounds);

  const auto rate = [&](size_t way) {
    return static_cast<double>(size.parameters) / rounds.median(way) / 1e9;
  };

  const auto add = [&](const char* row, size_t way, const char* against, size_t peer,
                       std::optional<double> target) {
    AddComparison({.bench = "update",
                   .row = row,
                   .value = rate(way),
                   .unit = "Gparam/s",
                   .against = against,
                   .ratios = rounds.Faster(way, peer),
                   .dropped = rounds.dropped(),
                   .target = target},
                  printer);
  };

  for (const AgainstProbe& line :
       {AgainstProbe{team, Described("update pass by the daemon's workers"), 0.95},
        AgainstProbe{safe, Described("update pass"), std::nullopt},
        AgainstProbe{f32, "fp32 update pass", std::nullopt},
        AgainstProbe{small, "update pass, split master and bf16 moments", std::nullopt,
                     kSmallBytes},
        AgainstProbe{peer_f32, "DeepSpeed's CPUAdam, emulated, fp32", std::nullopt}})
    AddAgainstProbe(rounds, line, probe, static_cast<double>(size.parameters) / 1e9, printer);

  add("update pass, crash-safe", safe, "the same without crash safety", plain, 1.0);
  add("update pass with the copies of the undo areas alone", copies,
      "the same without crash safety", plain, std::nullopt);
  add("update pass with the words of the undo areas and the progress alone", words,
      "the same without crash safety", plain, std::nullopt);

  AddComparison({.bench = "update",
                 .row = "update pass, crash-safe, over what a core's own caches hold",
                 .value = rounds.median(cached_safe),
                 .unit = "s",
                 .against = "the same without crash safety",
                 .ratios = rounds.Faster(cached_safe, cached),
                 .dropped = rounds.dropped(),
                 .target = {}},
                printer);

  add("update pass", team, "DeepSpeed's host passes, emulated: scale, Adam, convert", passes,
      std::nullopt);
  add("update pass, split master and bf16 moments", small,
      "DeepSpeed's host passes, emulated: scale, Adam, convert", passes, std::nullopt);
  add("fp32 update pass", f32, "DeepSpeed's CPUAdam, emulated", peer_f32, std::nullopt);
  AddProbeRows(rounds, static_cast<double>(size.parameters) * kProbeBytes / 1e9, {probe, ahead},
               printer);
}

// Parameters without gradients, such as embedding rows that no token uses: their variances decay to
// denormals and stay there. A quarter of the parameters is still far more than any cache; the
// variances are reset before each pass.
void MeasureDenormals(UpdateWays* ways, const Size& size, RowPrinter* printer) {
  const uint64_t count = std::max<uint64_t>(size.parameters / 4, kMi);
  Rounds rounds;
  const size_t normal = rounds.AddWay([&] { ways->UpdateSafe(count); },
                                      [&] {
                                        ways->Fill({kNormal, 0, count});
                                      });
  const size_t denormal = rounds.AddWay([&] { ways->UpdateSafe(count); },
                                        [&] {
                                          ways->Fill({kDenormal, 0, count});
                                        });
  rounds.Run(std::max<uint64_t>(size.rounds / 2, 1));

  AddComparison({.bench = "update",
                 .row = "update pass over denormal second moments",
                 .value = static_cast<double>(count) / rounds.median(denormal) / 1e9,
                 .unit = "Gparam/s",
                 .against = "normal ones",
                 .ratios = rounds.Faster(denormal, normal),
                 .dropped = rounds.dropped(),
                 .target = 0.95},
                printer);
}

// One chunk of this many parameters, with its planes placed as in the daemon, and contiguous. From
// 64 Mi on (planes of 256 MiB) the latter was up to 2.4 times slower on some CPUs; chunks of usual
// sizes show no difference.
void MeasurePlacing(uint64_t parameters, const Size& most, Crew* crew, RowPrinter* printer) {
  if (parameters > most.parameters) return;
  UpdateWays spaced(parameters, crew), behind(parameters, crew, false);
  spaced.Fill({});
  behind.Fill({});
  // Small chunks are updated several times per round.
  const uint64_t times = std::max<uint64_t>(32 * kMi / parameters, 1);
  const auto update = [&](UpdateWays* ways) {
    for (uint64_t i = 0; i < times; ++i) ways->UpdateSafe(parameters);
  };
  Rounds rounds;
  const size_t apart = rounds.AddWay([&] { update(&spaced); });
  const size_t close = rounds.AddWay([&] { update(&behind); });
  const size_t probe = rounds.AddWay([&] {
    for (uint64_t i = 0; i < times; ++i) spaced.Probe(0);
  });
  rounds.Run(most.rounds);

  const std::string row = Described("update pass") + ", chunk of " +
                          std::to_string(parameters / kMi) + " Mi parameters";
  const double rate = static_cast<double>(times * parameters) / rounds.median(apart) / 1e9;

  const auto add = [&](const char* against, size_t peer, double factor) {
    AddComparison({.bench = "update",
                   .row = row,
                   .value = rate,
                   .unit = "Gparam/s",
                   .against = against,
                   .ratios = rounds.Faster(apart, peer),
                   .dropped = rounds.dropped(),
                   .factor = factor,
                   .target = {}},
                  printer);
  };

  add("the same with planes right behind each other", close, 1);
  add("in-place read-modify-write probe, same threads and pages", probe,
      kUpdateBytes / kProbeBytes);
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t wanted = printer.Number("--parameters", 256) * kMi;
  const uint64_t rounds = printer.Number("--rounds", 11);
  printer.NoMoreArguments();

  Crew crew;
  Size size = {wanted, rounds};
  {
    UpdateWays ways(wanted, &crew);
    size.parameters = ways.parameters();
    MeasurePasses(&ways, size, &printer);
    MeasureDenormals(&ways, size, &printer);
  }

  for (const uint64_t chunk : {8, 64, 128}) MeasurePlacing(chunk * kMi, size, &crew, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
