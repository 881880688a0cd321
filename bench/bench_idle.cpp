// bench_idle: what an idle server takes from the machine, and the wake-up cost of the first request
// after a pause.
//
// The baseline is a bare futex: a thread that sleeps on a word, is woken, and answers with another
// word. In both, the scheduler places the two sides, and the clients spin for the answer, so that
// each round trip has one wake-up. The rows with both sides on fixed CPUs, and with a silence so
// short that the caches stay warm, show how much the scheduler's choice and a long silence add.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/harness/crew.h"
#include "bench/harness/ping_pong.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "bench/harness/wake_echo.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_idle [--json FILE] [--seconds N] [--requests N]\n"
    "CPU share of a server with one attached rank that asks for nothing, over N seconds (default "
    "5), and the first request after a pause\n"
    "against a futex.\n";
constexpr double kShareMax = 0.005;
constexpr int64_t kPauseNs = 5 * kNsPerMs;  // the server falls asleep long before the end
// It falls asleep too, but was awake recently; the client computes meanwhile.
constexpr int64_t kShortPauseNs = kNsPerMs / 2;

double IdleShare(const ServerProcess& server, double seconds) {
  SteadyClock clock;
  const double before = server.CpuSeconds();
  const int64_t start = clock.NowNs();
  clock.SleepNs(static_cast<int64_t>(seconds * kNsPerSecond));
  return (server.CpuSeconds() - before) /
         (static_cast<double>(clock.NowNs() - start) / kNsPerSecond);
}

class Wakes {
 public:
  Wakes(uint64_t requests, ServedJob* job, RowPrinter* printer)
      : requests_(requests), job_(job), printer_(printer) {}

  // With both sides placed by the scheduler.
  void Anywhere() {
    FutexEcho futex, process(EchoHome::kProcess);
    EventEcho event;
    const std::vector<std::vector<double>> times =
        Time(kPauseNs, {[this] { Fetch(); }, [&] { futex.RoundTrip(); }, [&] { event.RoundTrip(); },
                        [&] { process.RoundTrip(); }});
    AddRow("first request after a pause", 0.5, times[0], times[1], 1 / 1.3);
    AddRow("first request after a pause", 0.99, times[0], times[1], std::nullopt);
    AddRow("a bare wake by eventfd and epoll", 0.5, times[2], times[1], std::nullopt);
    AddRow("a bare futex wake of another process", 0.5, times[3], times[1], std::nullopt);
  }
  // With this thread and the woken one on fixed CPUs. The loop is on `other` already.
  void Placed(const TwoCores& cores, const std::string& where) {
    const std::vector<int> before = AllowedCpus();
    PinTo({cores.mine});
    {
      FutexEcho futex(EchoHome::kThread, {cores.other}), process(EchoHome::kProcess, {cores.other});
      for (const auto& [pause_ns, silence] :
           {std::pair{kPauseNs, "5 ms"}, std::pair{kShortPauseNs, "0.5 ms"}}) {
        const std::vector<std::vector<double>> times =
            Time(pause_ns,
                 {[this] { Fetch(); }, [&] { futex.RoundTrip(); }, [&] { process.RoundTrip(); }});

        const std::string name = std::string(", after ") + silence + where;
        AddRow("first request" + name, 0.5, times[0], times[1], std::nullopt);
        AddRow("a bare futex wake of another process" + name, 0.5, times[2], times[1],
               std::nullopt);
      }
    }

    PinTo(before);
  }

 private:
  void Fetch() {
    const client::Range range = {
        .chunk = 0, .element_begin = 0, .element_count = 16, .rcache_offset = 0};
    OrDie(job_->rank(0).Wait(OrDie(job_->rank(0).StartFetch(range, 0))).status());
  }
  static void Pause(int64_t pause_ns) {
    SteadyClock clock;
    if (pause_ns > kShortPauseNs) return clock.SleepNs(pause_ns);
    for (const int64_t end = clock.NowNs() + pause_ns; clock.NowNs() < end;) __builtin_ia32_pause();
  }
  // Microseconds of each way, alternating.
  std::vector<std::vector<double>> Time(int64_t pause_ns,
                                        const std::vector<std::function<void()>>& ways) const {
    std::vector<std::vector<double>> times(ways.size());
    const SteadyClock clock;

    for (uint64_t i = 0; i < requests_; ++i) {
      for (size_t way = 0; way < ways.size(); ++way) {
        Pause(pause_ns);
        const int64_t start = clock.NowNs();
        ways[way]();
        times[way].push_back(static_cast<double>(clock.NowNs() - start) / 1e3);
      }
    }
    return times;
  }
  void AddRow(const std::string& name, double share, const std::vector<double>& micros,
              const std::vector<double>& futex, const std::optional<double>& target) {
    const std::string label = share == 0.5 ? ", p50" : ", p99";
    printer_->Add({.bench = "idle",
                   .row = name + label,
                   .value = Percentile(micros, share),
                   .unit = "us",
                   .against = "a bare futex wake" + label,
                   .ratio = Percentile(futex, share) / Percentile(micros, share),
                   .target = target});
  }

  const uint64_t requests_;
  ServedJob* const job_;
  RowPrinter* const printer_;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const auto seconds = static_cast<double>(printer.Number("--seconds", 5));
  const uint64_t requests = printer.Number("--requests", 400);
  printer.NoMoreArguments();

  const JobShape shape{.name = "bench-idle"};
  const ServerProcess server =
      OrDie(ServerProcess::Start({"--pool", PoolFlagOf(shape), "--rcache-limit", "16MiB",
                                  "--keeper", "none", "--log-level", "warn"}));
  ServedJob job(shape, server.socket_dir());
  SteadyClock clock;
  clock.SleepNs(kNsPerSecond / 2);

  const double share = IdleShare(server, seconds);
  printer.Add({.bench = "idle",
               .row = "CPU share of an idle server",
               .value = share,
               .unit = "of a core",
               .against = "0.5 % of a core",
               .ratio = kShareMax / std::max(share, 1e-6),
               .target = 1.0});

  Wakes wakes(requests, &job, &printer);
  wakes.Anywhere();

  const TwoCores cores = FindTwoCores();
  for (const int cpu : {cores.mine, cores.other}) {
    server.PinLoop(cpu);
    wakes.Placed({cores.mine, cpu}, cpu == cores.mine ? ", both on one CPU" : ", a CPU each");
    if (cores.mine == cores.other) break;
  }

  job.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
