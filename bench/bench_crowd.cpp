// bench_crowd: the cost of a thousand attached, idle ranks: the time to attach one more, the
// server's memory, and the time until everything is released after their process is killed; alone,
// and beside 64 jobs that train in other processes, which die with it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "base/unique_fd.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "client/admin/send_http.h"
#include "client/admin/views.h"
#include "shm/socket_path.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_crowd [--json FILE] [--jobs N] [--trainers N]\n"
    "N jobs (default 20) of 50 ranks each attach from one process and do nothing: p99 of an "
    "attach, memory of the server for each rank, "
    "and\n"
    "the time until all is back when that process is killed; then the same beside N trainers "
    "(default 64), which are killed with it.\n";
constexpr uint32_t kRanks = 50;  // per job
constexpr int64_t kLimitNs = 60 * kNsPerSecond;

JobShape IdleJob(uint64_t number) {
  return {.name = "idle-" + std::to_string(number),
          .chunks = 1,
          .chunk_elements = 16 * kRanks,
          .world = kRanks,
          .rcache_bytes = 16 * kKiB};
}

client::StatusView StatusOf(const ServerProcess& server) {
  const auto reply = OrDie(
      client::SendHttp(shm::AdminSocketPath(server.socket_dir()), {"GET", "/v1/status"}, kLimitNs));
  return OrDie(client::ReadStatus(reply.body));
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * kKiB;
  }
  Die("the memory of process " + std::to_string(pid) + " is not told");
}

// In a child: attaches all ranks, writes each one's seconds, and waits to be killed.
[[noreturn]] void SitThere(const std::string& socket_dir, uint64_t jobs, int out) {
  SteadyClock clock;
  client::ClientOptions options;
  options.clock = &clock;
  options.socket_dir = socket_dir;
  std::vector<std::unique_ptr<client::MemClient>> sessions;

  for (uint64_t number = 0; number < jobs; ++number) {
    const shm::JobSpec spec = SpecOf(IdleJob(number));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const int64_t begin = clock.NowNs();
      sessions.push_back(OrDie(client::MemClient::Connect(options, spec, rank)));
      const double seconds = static_cast<double>(clock.NowNs() - begin) / kNsPerSecond;
      if (write(out, &seconds, sizeof seconds) != sizeof seconds) _exit(1);
    }
  }

  for (;;) pause();
}

// In a child: trains a small job with pauses until it is killed.
[[noreturn]] void TrainThere(const std::string& socket_dir, uint64_t number, int out) {
  SteadyClock clock;
  ServedJob job({.name = "trains-" + std::to_string(number),
                 .chunks = 2,
                 .chunk_elements = 1024,
                 .world = 1,
                 .rcache_bytes = 8 * kKiB,
                 .spin_ns = 0},
                socket_dir);

  for (double steps = 0;; ++steps) {
    job.Step();
    if (steps == 0 && write(out, &steps, sizeof steps) != sizeof steps) _exit(1);
    clock.SleepNs(20 * kNsPerMs);
  }
}

// Children that each write a number when they are ready, and are killed together.
class Children {
 public:
  Children() {
    int ends[2];
    if (pipe(ends) != 0) Die("no pipe");
    read_end_ = UniqueFd(ends[0]);
    write_end_ = UniqueFd(ends[1]);
  }
  template <typename Work>
  void Fork(Work work) {
    const pid_t pid = fork();
    if (pid < 0) Die("no process");
    if (pid == 0) work(write_end_.get());
    pids_.push_back(pid);
  }
  // The next `count` numbers.
  std::vector<double> Hear(size_t count) {
    std::vector<double> numbers(count);
    for (double& number : numbers) {
      if (read(read_end_.get(), &number, sizeof number) != sizeof number)
        Die("a rank could not attach");
    }
    return numbers;
  }
  void Kill() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    pids_.clear();
  }

 private:
  UniqueFd read_end_, write_end_;
  std::vector<pid_t> pids_;
};

void Measure(uint64_t jobs, uint64_t trainers, RowPrinter* printer) {
  const uint64_t ranks = jobs * kRanks;
  const ServerProcess server = OrDie(ServerProcess::Start(
      {"--pool", "64MiB", "--rcache-limit",
       std::to_string(RoundUp(ranks * 16 * kKiB + trainers * 8 * kKiB, kMiB)), "--sessions-max",
       std::to_string(ranks + trainers + 8), "--jobs-max", std::to_string(jobs + trainers + 1),
       "--keeper", "none", "--lease", "0s", "--log-level", "error"}));
  // A first job comes and goes, so that one-time costs are not counted.
  ServedJob(
      {.name = "first", .chunks = 1, .chunk_elements = 1024, .world = 1, .rcache_bytes = 4096},
      server.socket_dir())
      .Detach();

  Children crowd;
  for (uint64_t number = 0; number < trainers; ++number)
    crowd.Fork([&](int out) { TrainThere(server.socket_dir(), number, out); });
  crowd.Hear(trainers);

  const auto pid = static_cast<pid_t>(StatusOf(server).pid);
  const uint64_t before = ResidentBytes(pid);
  crowd.Fork([&](int out) { SitThere(server.socket_dir(), jobs, out); });
  const std::vector<double> attached = crowd.Hear(ranks);
  const uint64_t after = ResidentBytes(pid);

  SteadyClock clock;
  const int64_t begin = clock.NowNs();
  crowd.Kill();
  while (StatusOf(server).sessions > 0 && clock.NowNs() - begin < kLimitNs) clock.SleepNs(kNsPerMs);
  const double cleaned = static_cast<double>(clock.NowNs() - begin) / kNsPerSecond;

  const auto add = [&](const std::string& row, double value, const char* unit) {
    printer->Add({.bench = "crowd",
                  .row = row,
                  .value = value,
                  .unit = unit,
                  .against = "",
                  .ratio = {},
                  .target = {}});
  };

  const std::string many = std::to_string(ranks) + " idle ranks";
  const std::string beside =
      trainers == 0 ? "" : " beside " + std::to_string(trainers) + " jobs that train";
  add("p50 of an attach, up to " + many + beside, Percentile(attached, 0.5) * 1e3, "ms");
  add("p99 of an attach, up to " + many + beside, Percentile(attached, 0.99) * 1e3, "ms");
  add("resident memory of the server for each of " + many + beside,
      static_cast<double>(after - std::min(before, after)) / kKiB / static_cast<double>(ranks),
      "KiB");

  const std::string killed = trainers == 0 ? "the process of " + many + " is killed"
                                           : "the processes of " + many + " and of " +
                                                 std::to_string(trainers) + " trainers are killed";
  printer->Add({.bench = "crowd",
                .row = "until all is back when " + killed,
                .value = cleaned,
                .unit = "s",
                .against = "1 s",
                .ratio = 1 / cleaned,
                .target = 1.0});
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t jobs = printer.Number("--jobs", 20), trainers = printer.Number("--trainers", 64);
  printer.NoMoreArguments();
  Measure(jobs, 0, &printer);
  if (trainers > 0) Measure(jobs, trainers, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
