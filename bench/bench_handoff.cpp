// bench_handoff: the cost of handing a small update to a worker: the time from submission until its
// end is seen, minus the update itself, while both sides spin; compared with the ring's round trip,
// and with the method of DeepSpeed's ZenFlowAdam (two semaphores, sem_post and sem_wait of a
// sleeping worker; our own emulation).
//
// The worker is the daemon's. The update itself is timed on this thread with separate planes, so
// that no cache line moves between cores for it.
#include <semaphore.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "bench/harness/crew.h"
#include "bench/harness/ping_pong.h"
#include "bench/harness/row.h"
#include "memserver/update/worker_team.h"
#include "optim/kernels/float_mode.h"
#include "optim/update_rule.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kElements = 4096;
constexpr double kAllowanceUs = 1;
constexpr const char* kHelp =
    "bench_handoff [--json FILE] [--round-trips N]\n"
    "Overhead of handing an update of 4,096 parameters to a worker, against a ring's round trip "
    "and against two semaphores.\n";

// The state of one small update.
struct SmallState {
  struct alignas(64) Plane {
    std::array<float, kElements> values{};
  };
  std::array<Plane, 4> planes;
  optim::StepFactors factors =
      optim::MakeFactors({}, {.lr = 1e-4, .optimizer_step = 10, .gradient_scale = 1.0F}, {});
  memserver::ParameterRun whole = {.begin = 0, .count = kElements, .group = 0};
  optim::ProgressWord progress;
  uint64_t version = 0;

  memserver::Work NextWork() {
    memserver::Work work;
    work.name.kind = memserver::WorkKind::kUpdate;
    work.runs = std::span(&whole, 1);

    work.planes.master = planes[0].values.data();
    work.planes.momentum = planes[1].values.data();
    work.planes.variance = planes[2].values.data();
    work.planes.gradient = planes[3].values.data();
    work.planes.count = kElements;

    work.factors = {.all = &factors};
    work.progress = &progress;
    work.identity = 1;
    work.version = ++version;
    return work;
  }
};

std::vector<double> TimeDirect(int count) {
  const auto state = std::make_unique<SmallState>();
  std::vector<optim::UndoArea> areas(2);
  const optim::FlushDenormals mode;
  memserver::Worker worker(optim::SelectKernels(optim::BestIsa()),
                           std::span<optim::UndoArea, 2>(areas.data(), 2));
  return TimeRoundTrips(count, [&] { worker.Do(state->NextWork()); });
}

std::vector<double> TimeTeam(int count, const TwoCores& cores) {
  const auto state = std::make_unique<SmallState>();
  std::vector<optim::UndoArea> areas(2);
  const SteadyClock clock;
  memserver::WorkerTeamOptions options;
  options.clock = &clock;
  options.threads = 1;
  options.cpus = {static_cast<uint32_t>(cores.other)};
  memserver::WorkerTeam team(options, std::span(reinterpret_cast<std::byte*>(areas.data()),
                                                areas.size() * sizeof(optim::UndoArea)));

  std::vector<memserver::WorkDone> done;
  PinTo({cores.mine});
  return TimeRoundTrips(count, [&] {
    team.Push(state->NextWork());
    while (!team.TakeDone(&done)) __builtin_ia32_pause();
  });
}

std::vector<double> TimeSemaphores(int count, const TwoCores& cores) {
  sem_t command, finished;
  if (sem_init(&command, 1, 0) != 0 || sem_init(&finished, 1, 0) != 0) Die("no semaphores");
  bool stopping = false;

  std::thread worker([&] {
    PinTo({cores.other});
    while (true) {
      while (sem_wait(&command) != 0) continue;
      if (stopping) return;
      sem_post(&finished);
    }
  });

  std::vector<double> micros = TimeRoundTrips(count, [&] {
    sem_post(&command);
    while (sem_wait(&finished) != 0) continue;
  });

  stopping = true;
  sem_post(&command);
  worker.join();
  sem_destroy(&command);
  sem_destroy(&finished);
  return micros;
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const auto count = static_cast<int>(printer.Number("--round-trips", 20'000));
  printer.NoMoreArguments();

  const TwoCores cores = FindTwoCores();
  const double word = Median(TimePingPong(count, cores));
  const std::vector<int> before = AllowedCpus();
  PinTo({cores.mine});
  const double direct = Median(TimeDirect(count));
  PinTo(before);
  const std::vector<double> handed = TimeTeam(count, cores);
  const double semaphores = Median(TimeSemaphores(count / 10 + 1, cores));
  const double overhead = std::max(Median(handed) - direct, 1e-3);

  const Row row = {.bench = "handoff",
                   .row = "hand-off of an update of 4,096 parameters, without the update",
                   .value = overhead,
                   .unit = "us",
                   .against = "round trip of one shared word, and 1 us",
                   .ratio = (word + kAllowanceUs) / overhead,
                   .target = 1.0};
  printer.Add(row);

  Row peer = row;
  peer.against = "two semaphores, as ZenFlowAdam hands off, emulated";
  peer.ratio = semaphores / overhead;
  peer.target.reset();
  printer.Add(peer);

  printer.Add({.bench = "handoff",
               .row = "the update itself",
               .value = direct,
               .unit = "us",
               .against = "",
               .ratio = {},
               .target = {}});

  printer.Add({.bench = "handoff",
               .row = "submission to end, p99.9",
               .value = Percentile(handed, 0.999),
               .unit = "us",
               .against = "",
               .ratio = {},
               .target = {}});
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
