// bench_crowd: what a thousand attached ranks that do nothing cost: the time to attach one more, memory of the server, and how long it
// takes until all is back when their process is killed.
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
#include "bench/row.h"
#include "bench/served_job.h"
#include "bench/server_process.h"
#include "client/memctl/send_http.h"
#include "client/memctl/views.h"
#include "shm/socket_path.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_crowd [--json FILE] [--jobs N]\n"
    "N jobs (default 20) of 50 ranks each attach from one process and do nothing: p99 of an attach, memory of the server for each rank, "
    "and\n"
    "the time until all is back when that process is killed.\n";
constexpr uint32_t kRanks = 50;  // of a job
constexpr int64_t kLimitNs = 60 * kNsPerSecond;

JobShape IdleJob(uint64_t number) {
  return {.name = "idle-" + std::to_string(number), .chunks = 1, .chunk_elements = 16 * kRanks, .world = kRanks, .rcache_bytes = 16 * kKiB};
}

client::StatusView StatusOf(const ServerProcess& server) {
  const auto reply = OrDie(client::SendHttp(shm::AdminSocketPath(server.socket_dir()), {"GET", "/v1/status"}, kLimitNs));
  return OrDie(client::ReadStatus(reply.body));
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * kKiB;
  }
  Die("the memory of process " + std::to_string(pid) + " is not told");
}

// In a child: attaches all ranks, writes the seconds of each, and waits to be killed.
[[noreturn]] void SitThere(const std::string& socket_dir, uint64_t jobs, int out) {
  SteadyClock clock;
  client::ClientOptions options;
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

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t jobs = printer.Number("--jobs", 20), ranks = jobs * kRanks;
  printer.NoMoreArguments();
  const ServerProcess server = OrDie(ServerProcess::Start(
      {"--pool", "64MiB", "--rcache-limit", std::to_string(RoundUp(ranks * 16 * kKiB, kMiB)), "--sessions-max", std::to_string(ranks + 8),
       "--jobs-max", std::to_string(jobs + 1), "--keeper", "none", "--lease", "0s", "--log-level", "error"}));
  // One that comes and goes, so that what the first one costs alone is not counted.
  ServedJob({.name = "first", .chunks = 1, .chunk_elements = 1024, .world = 1, .rcache_bytes = 4096}, server.socket_dir()).Detach();
  const auto pid = static_cast<pid_t>(StatusOf(server).pid);
  const uint64_t before = ResidentBytes(pid);
  int ends[2];
  if (pipe(ends) != 0) Die("no pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t crowd = fork();
  if (crowd == 0) SitThere(server.socket_dir(), jobs, write_end.get());
  write_end.Reset();
  std::vector<double> attached(ranks);
  for (double& seconds : attached) {
    if (read(read_end.get(), &seconds, sizeof seconds) != sizeof seconds) Die("a rank could not attach");
  }
  const uint64_t after = ResidentBytes(pid);
  SteadyClock clock;
  const int64_t begin = clock.NowNs();
  kill(crowd, SIGKILL);
  waitpid(crowd, nullptr, 0);
  while (StatusOf(server).sessions > 0 && clock.NowNs() - begin < kLimitNs) clock.SleepNs(kNsPerMs);
  const double cleaned = static_cast<double>(clock.NowNs() - begin) / kNsPerSecond;
  const auto add = [&](const std::string& row, double value, const char* unit) {
    printer.Add({.bench = "crowd", .row = row, .value = value, .unit = unit, .against = "", .ratio = {}, .target = {}});
  };
  const std::string many = std::to_string(ranks) + " idle ranks";
  add("p50 of an attach, up to " + many, Percentile(attached, 0.5) * 1e3, "ms");
  add("p99 of an attach, up to " + many, Percentile(attached, 0.99) * 1e3, "ms");
  add("resident memory of the server for each of " + many,
      static_cast<double>(after - std::min(before, after)) / kKiB / static_cast<double>(ranks), "KiB");
  printer.Add({.bench = "crowd",
               .row = "until all is back when the process of " + many + " is killed",
               .value = cleaned,
               .unit = "s",
               .against = "1 s",
               .ratio = 1 / cleaned,
               .target = 1.0});
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
