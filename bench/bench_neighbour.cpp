// bench_neighbour: a job's fetches and steps beside a hostile neighbour, compared with the same job
// alone at the same server.
//
// Bursts alone and beside a neighbour alternate: the neighbour is started before each of the
// latter, and killed afterwards. Such a burst is compared with the two bursts alone around it. The
// victim has priority `high`, as an operator sets for a job that should not be disturbed.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/drive/drive_load.h"
#include "bench/harness/hostile.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "client/admin/send_http.h"
#include "shm/socket_path.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp =
    "bench_neighbour [--json FILE] [--milliseconds N] [--rounds N] [--nvme DIR] "
    "[--watcher-milliseconds N] [--beside NAME]\n"
    "Fetches of 1 MiB and whole steps of a job beside a flood of descriptors, a stopped trainer, "
    "one that takes no answers, 20 crashes a\n"
    "second, one that leases everything, and one that keeps the drive busy (in a directory of its "
    "own in DIR, default: the current one);\n"
    "each against the job alone, in bursts of N ms (default 400), or NAME alone; and beside three "
    "that have no part in memserver, which is "
    "the\n"
    "machine's own share. And a watcher at 10 Hz against none. Needs 1 GiB of memory and there.\n";
constexpr double kFetchTarget = 1 / 1.5, kStepTarget = 1 / 1.10, kWatchTarget = 0.99;
constexpr int64_t kSettleNs = 100 * kNsPerMs;  // until a killed one is cleaned up
constexpr int64_t kWatchNs = kNsPerSecond / 10;
constexpr uint32_t kChunks = 32;
constexpr uint64_t kElements = 256 * 1024;  // per chunk

JobShape VictimShape() {
  return {.name = "victim",
          .chunks = kChunks,
          .chunk_elements = kElements,
          .world = 1,
          .rcache_bytes = sizeof(float) * kElements};
}

struct Burst {
  std::vector<double> fetches, steps;  // seconds
};

class Victim {
 public:
  explicit Victim(const std::string& socket_dir) : job_(VictimShape(), socket_dir) {}

  // Fetches whole chunks sequentially for half of the time, then runs whole steps. `before_half` is
  // called before each half, untimed.
  Burst Run(
      int64_t burst_ns, const std::function<void(size_t)>& before_half = [](size_t) {}) {
    Burst burst;
    before_half(0);
    for (const int64_t begin = clock_.NowNs(); clock_.NowNs() - begin < burst_ns / 2;) {
      const client::Range whole{.chunk = next_++ % kChunks,
                                .element_begin = 0,
                                .element_count = kElements,
                                .rcache_offset = 0};

      const int64_t start = clock_.NowNs();
      const auto ticket = job_.rank(0).StartFetch(whole, job_.version());
      const bool done = ticket.ok() && job_.rank(0).Wait(ticket.value()).ok();
      burst.fetches.push_back(static_cast<double>(clock_.NowNs() - start) / kNsPerSecond);
      failed_ += done ? 0 : 1;
    }

    before_half(1);
    for (const int64_t begin = clock_.NowNs(); clock_.NowNs() - begin < burst_ns / 2;)
      burst.steps.push_back(Step());
    return burst;
  }
  // Seconds of one step; a failed request ends the program.
  double Step() {
    const int64_t start = clock_.NowNs();
    job_.Step();
    return static_cast<double>(clock_.NowNs() - start) / kNsPerSecond;
  }
  uint64_t failed() const { return failed_; }
  void Detach() { job_.Detach(); }

 private:
  SteadyClock clock_;
  ServedJob job_;
  uint32_t next_ = 0;
  uint64_t failed_ = 0;
};

// A folder for states, and a configuration whose quotas send one job there and give the other
// priority.
struct Place {
  explicit Place(const std::string& parent) {
    std::string path = parent + "/tidepool-neighbour-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) Die("no directory can be made in " + parent);
    directory = fs::absolute(path);
    config = directory + "/memserver.toml";
    std::ofstream(config) << "[[jobs.quota]]\nmatch = \"job:victim\"\npriority = \"high\"\n"
                          << "[[jobs.quota]]\nmatch = \"job:" << kNvmeHogName << "\"\nlimit = \""
                          << HogPoolBytes() / 2 << "\"\n";
    fs::create_directory(directory + "/drive");
    fs::permissions(directory + "/drive", fs::perms::owner_all);
  }
  ~Place() {
    std::error_code error;
    fs::remove_all(directory, error);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  std::string directory, config;
};

std::vector<std::string> FlagsOf(const Place& place) {
  const uint64_t pool =
      shm::StateBytesOf(SpecOf(VictimShape())).total() + HogPoolBytes() + 16 * kMiB;
  return {"--pool", std::to_string(RoundUp(pool, kMiB)), "--rcache-limit", "64MiB", "--keeper",
          "none",
          // A neighbour that has ended keeps nothing.
          "--lease", "0s", "--log-level", "error", "--config", place.config, "--nvme",
          place.directory + "/drive:" + std::to_string(RoundUp(HogNvmeBytes(), kMiB) + 256 * kMiB)};
}

// Bytes that memserver has moved to and from its drive.
DriveLoad BytesMoved(const std::string& socket_dir) {
  const auto reply = OrDie(
      client::SendHttp(shm::AdminSocketPath(socket_dir), {"GET", "/metrics"}, 10 * kNsPerSecond));
  const auto number = [&reply](const std::string& name) -> uint64_t {
    const size_t at = reply.body.find("\n" + name + " ");
    if (at == std::string::npos) Die("memserver has no metric " + name);
    return static_cast<uint64_t>(std::strtod(reply.body.c_str() + at + name.size() + 2, nullptr));
  };
  return {number("tidepool_nvme_read_bytes_total"), number("tidepool_nvme_written_bytes_total")};
}

// The costs of one neighbour, by round.
struct Costs {
  const Hostile* hostile = nullptr;
  std::vector<double> fetch_ratios = {}, step_ratios = {}, p99s = {}, steps = {};
};

class Neighbours {
 public:
  Neighbours(Scene scene, Victim* victim, RowPrinter* printer)
      : scene_(std::move(scene)), victim_(victim), printer_(printer) {}

  // Measures all of them one after another in each round, so that they run in the same regime.
  void Measure(std::span<const Hostile> hostiles, int64_t burst_ns, uint64_t rounds) {
    std::vector<Costs> all;
    for (const Hostile& hostile : hostiles) all.push_back({.hostile = &hostile});

    Burst before = victim_->Run(burst_ns);
    for (uint64_t round = 0; round < rounds; ++round) {
      for (Costs& costs : all) {
        const Burst beside = RunBeside(*costs.hostile, burst_ns);
        clock_.SleepNs(kSettleNs);
        Burst after = victim_->Run(burst_ns);

        costs.p99s.push_back(Percentile(beside.fetches, 0.99));
        costs.steps.push_back(Median(beside.steps));
        costs.fetch_ratios.push_back(
            (Percentile(before.fetches, 0.99) + Percentile(after.fetches, 0.99)) / 2 /
            costs.p99s.back());
        costs.step_ratios.push_back((Median(before.steps) + Median(after.steps)) / 2 /
                                    costs.steps.back());
        before = std::move(after);
      }
    }

    for (const Costs& costs : all) Print(costs);
  }

 private:
  // A bystander on the drive moves as many bytes as memserver moved beside the previous neighbour,
  // in the same half of the burst.
  Burst RunBeside(const Hostile& hostile, int64_t burst_ns) {
    WishDriveLoad(scene_.drive, loads_[0]);
    const HostileProcesses processes(hostile, scene_);
    clock_.SleepNs(hostile.begin_ns);

    std::array<Moved, 3> moved;  // before and after each half
    Burst burst = victim_->Run(burst_ns, [&](size_t half) {
      WishDriveLoad(scene_.drive, loads_[half]);
      moved[half] = MovedNow();
    });
    moved[2] = MovedNow();
    if (hostile.is_bystander) return burst;

    for (size_t half = 0; half < 2; ++half) {
      const double seconds =
          static_cast<double>(moved[half + 1].at_ns - moved[half].at_ns) / kNsPerSecond;
      const auto rate = [seconds](uint64_t from, uint64_t to) {
        return static_cast<uint64_t>(static_cast<double>(to - from) / seconds);
      };
      loads_[half] = {rate(moved[half].bytes.read, moved[half + 1].bytes.read),
                      rate(moved[half].bytes.written, moved[half + 1].bytes.written)};
    }
    return burst;
  }

  struct Moved {
    int64_t at_ns = 0;
    DriveLoad bytes;
  };
  Moved MovedNow() { return {clock_.NowNs(), BytesMoved(scene_.socket_dir)}; }

  void Print(const Costs& costs) {
    const auto target = [&](double at_least) {
      return costs.hostile->is_bystander ? std::nullopt : std::optional(at_least);
    };

    AddComparison({.bench = "neighbour",
                   .row = std::string("p99 of a fetch of 1 MiB beside ") + costs.hostile->what,
                   .value = Median(costs.p99s) * 1e6,
                   .unit = "us",
                   .against = "alone",
                   .ratios = costs.fetch_ratios,
                   .target = target(kFetchTarget)},
                  printer_);

    AddComparison({.bench = "neighbour",
                   .row = std::string("a step beside ") + costs.hostile->what,
                   .value = Median(costs.steps) * 1e3,
                   .unit = "ms",
                   .against = "alone",
                   .ratios = costs.step_ratios,
                   .target = target(kStepTarget)},
                  printer_);
  }

  const Scene scene_;
  Victim* const victim_;
  RowPrinter* const printer_;
  SteadyClock clock_;
  DriveLoad loads_[2];  // beside the last neighbour of memserver, by half
};

// The requests of `memctl page`.
void Look(const ServerProcess& server) {
  for (const char* target :
       {"/v1/status", "/v1/jobs", "/v1/residency", "/v1/quotas", "/v1/health"}) {
    OrDie(client::SendHttp(shm::AdminSocketPath(server.socket_dir()), {"GET", target},
                           10 * kNsPerSecond)
              .status());
  }
}

// What the answers cost memserver while the job waits: a watcher takes at most that from a step.
void MeasureLooks(const ServerProcess& server, RowPrinter* printer) {
  constexpr uint32_t kLooks = 20, kBatches = 9;
  constexpr int64_t kBatchNs = kLooks * kWatchNs;
  std::vector<double> shares;
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    const double before = server.CpuSeconds();
    for (uint32_t i = 0; i < kLooks; ++i) Look(server);
    shares.push_back((server.CpuSeconds() - before) * kNsPerSecond / static_cast<double>(kBatchNs));
  }

  std::vector<double> ratios;
  for (const double share : shares) ratios.push_back((1 - kWatchTarget) / share);
  AddComparison({.bench = "neighbour",
                 .row = "CPU of the server for ten looks a second",
                 .value = Median(shares),
                 .unit = "of a core",
                 .against = "1 % of a core",
                 .ratios = ratios,
                 .target = 1.0},
                printer);
}

// Ten looks per second from a separate thread; compared with no watcher.
void MeasureWatcher(const ServerProcess& server, Victim* victim, int64_t burst_ns, uint64_t rounds,
                    RowPrinter* printer) {
  std::atomic<bool> watches{false}, ends{false};
  std::atomic<uint64_t> looks{0};

  std::thread watcher([&] {
    SteadyClock clock;
    while (!ends) {
      const int64_t next = clock.NowNs() + kWatchNs;
      if (watches) {
        Look(server);
        ++looks;
      }
      clock.SleepNs(std::max<int64_t>(0, next - clock.NowNs()));
    }
  });

  const auto mean_step = [&] {
    SteadyClock clock;
    uint64_t steps = 0;
    const int64_t begin = clock.NowNs();
    for (; clock.NowNs() - begin < burst_ns; ++steps) victim->Step();
    return static_cast<double>(clock.NowNs() - begin) / static_cast<double>(steps) / kNsPerSecond;
  };

  std::vector<double> ratios, steps;
  for (uint64_t round = 0; round < rounds; ++round) {
    // The order alternates, so that a drift of the machine affects both.
    double of[2] = {0, 0};
    for (const bool watched : {round % 2 == 0, round % 2 != 0}) {
      watches = watched;
      of[watched ? 1 : 0] = mean_step();
    }
    watches = false;
    steps.push_back(of[1]);
    ratios.push_back(of[0] / of[1]);
  }

  ends = true;
  watcher.join();
  if (looks < rounds) Die("the watcher did not look");

  AddComparison({.bench = "neighbour",
                 .row = "a step while somebody looks 10 times a second",
                 .value = Median(steps) * 1e3,
                 .unit = "ms",
                 .against = "nobody looks",
                 .ratios = ratios,
                 .target = kWatchTarget},
                printer);
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const std::string hostile = printer.Word("--hostile", ""),
                    socket_dir = printer.Word("--socket-dir", "");
  const std::string drive = printer.Word("--nvme", "."), only = printer.Word("--beside", "");
  if (!hostile.empty()) RunHostile(hostile, {socket_dir, drive});

  const auto burst_ns = static_cast<int64_t>(printer.Number("--milliseconds", 400)) * kNsPerMs;
  const uint64_t rounds = printer.Number("--rounds", 5);
  const auto watch_ns =
      static_cast<int64_t>(printer.Number("--watcher-milliseconds", 2000)) * kNsPerMs;
  printer.NoMoreArguments();

  const std::span<const Hostile> all = Hostiles();
  std::string names;
  for (const Hostile& each : all)
    names += each.same_round ? "" : std::string(names.empty() ? "" : ", ") + each.name;
  const auto is_it = [&only](const Hostile& each) { return !each.same_round && only == each.name; };
  if (!only.empty() && std::none_of(all.begin(), all.end(), is_it))
    Die("--beside " + only + ": there is " + names);

  const Place place(drive);
  const ServerProcess server = OrDie(ServerProcess::Start(FlagsOf(place)));
  Victim victim(server.socket_dir());
  victim.Run(burst_ns);

  if (only.empty()) MeasureLooks(server, &printer);
  if (only.empty()) MeasureWatcher(server, &victim, watch_ns, 2 * rounds, &printer);
  Neighbours neighbours({server.socket_dir(), place.directory}, &victim, &printer);
  for (size_t i = 0, next = 0; i < all.size(); i = next) {
    for (next = i + 1; next < all.size() && all[next].same_round;) ++next;
    if (only.empty() || only == all[i].name)
      neighbours.Measure(all.subspan(i, next - i), burst_ns, rounds);
  }

  printer.Add({.bench = "neighbour",
               .row = "requests of the job that failed",
               .value = static_cast<double>(victim.failed()),
               .unit = "requests",
               .against = "none",
               .ratio = victim.failed() == 0 ? 1.0 : 0.0,
               .target = 1.0});
  victim.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
