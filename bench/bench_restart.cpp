// bench_restart: how long a training job waits when memserver is killed: from SIGKILL to the first
// answer of the restarted server, which has adopted the pool and redone what the sealed step still
// lacked for the requested chunk.
//
// The job nearly fills a pool of 4 GiB (--chunk-mebibytes makes a smaller one, which proves
// nothing); the kill follows a sealed step immediately, so that every chunk's update is still to be
// done. In the same run: a start with a new pool of that size, the cost of a server without kept
// memory (which would also lose the states). A keeper starts a server at most five times a minute,
// so with more than three kills the keeper is killed now and then, too: memserver starts another
// one, with a new count.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "client/mem_client.h"

namespace tidepool::bench {
namespace {

using client::MemClient;
using client::Range;

constexpr uint64_t kChunkMebibytes = 64;
constexpr uint32_t kChunks = 15;      // with moments and gradients the bytes of 60 chunks
constexpr uint64_t kPoolChunks = 64;  // size of the pool in chunks: 4 GiB
// The keeper pauses 0, 100 and 200 ms before a restart.
constexpr uint64_t kKills = 3;
constexpr int64_t kKeeperNs = 10 * kNsPerSecond;
constexpr double kLimitSeconds = 1;

constexpr const char* kHelp =
    "bench_restart [--json FILE] [--kills N] [--chunk-mebibytes N] [FLAGS OF memserver...]\n"
    "Seconds from kill -9 of memserver to its first answer, with a pool of 64 chunks of N MiB (64, "
    "so 4 GiB): the worst of N kills (3).\n"
    "Needs about 4.5 GiB of memory.\n";

JobShape ShapeOf(uint64_t chunk_bytes) {
  return {.name = "bench-restart",
          .chunks = kChunks,
          .chunk_elements = chunk_bytes / sizeof(float),
          .rcache_bytes = chunk_bytes};
}

pid_t ServerPid(const std::string& socket_dir) {
  std::ifstream lock(socket_dir + "/memserver.lock");
  pid_t pid = 0;
  lock >> pid;
  return pid;
}

// The pid of the keeper; 0 when there is none.
pid_t KeeperPid(const std::string& socket_dir) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream comm(entry.path() / "comm"), words(entry.path() / "cmdline");
    std::string name, command;
    if (!std::getline(comm, name) || name != "tp-keeper") continue;
    std::getline(words, command);
    if (command.find(socket_dir) != std::string::npos)
      return static_cast<pid_t>(std::stol(entry.path().filename()));
  }
  return 0;
}

class RestartBench {
 public:
  RestartBench(const std::string& socket_dir, uint64_t chunk_bytes)
      : socket_dir_(socket_dir), elements_(chunk_bytes / sizeof(float)) {
    client::ClientOptions options;
    options.clock = &clock_;
    options.socket_dir = socket_dir;
    options.connect_timeout_ns = 300 * kNsPerSecond;
    options.server_timeout_ns = 60 * kNsPerSecond;

    const int64_t begin = clock_.NowNs();
    client_ = OrDie(MemClient::Connect(options, SpecOf(ShapeOf(chunk_bytes)), 0));
    start_seconds_ = Seconds(begin);

    std::memset(client_->attachment().rcache, 0, chunk_bytes);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
      Await(client_->StartPutWeights(Whole(chunk)));
  }

  // Seconds from the start of a server with a new pool to the job's first answer.
  double start_seconds() const { return start_seconds_; }

  // Runs one step, then kills; returns the seconds until a chunk of the new version arrives.
  double KillAfterAStep(Version version) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
      Await(client_->StartSubmitGradient(Whole(chunk), version, 0));
    const client::Outcome sealed =
        Await(client_->StartEndStep({.version = version, .learning_rate = 0.1F}));
    if (sealed.version != version + 1) Die("a step was lost");

    const pid_t server = ServerPid(socket_dir_);
    const int64_t begin = clock_.NowNs();
    if (kill(server, SIGKILL) != 0) Die("memserver is not there");
    const client::Outcome fetched = Await(client_->StartFetch(
        {.chunk = 0, .element_begin = 0, .element_count = 16, .rcache_offset = 0}, version + 1));
    if (fetched.version != version + 1) Die("a step was lost");
    if (ServerPid(socket_dir_) == server) Die("the answer came from the server that was killed");
    return Seconds(begin);
  }

  // Returns when another keeper is running; it holds everything long before the next seal.
  void RenewKeeper() {
    const pid_t keeper = KeeperPid(socket_dir_);
    if (keeper == 0 || kill(keeper, SIGKILL) != 0) Die("the keeper is not there");
    const int64_t end = clock_.NowNs() + kKeeperNs;
    for (pid_t next = keeper; next == keeper || next == 0; next = KeeperPid(socket_dir_)) {
      if (clock_.NowNs() > end) Die("memserver has not started another keeper");
      clock_.SleepNs(kNsPerMs);
    }
  }

  void Detach() {
    const Status status = client_->Detach();
    if (!status.ok()) Die(status.Format());
    kill(ServerPid(socket_dir_), SIGINT);
  }

 private:
  Range Whole(uint32_t chunk) const {
    return {.chunk = chunk, .element_begin = 0, .element_count = elements_, .rcache_offset = 0};
  }
  client::Outcome Await(Result<client::Ticket> ticket) {
    return OrDie(client_->Wait(OrDie(std::move(ticket))));
  }
  double Seconds(int64_t begin) {
    return static_cast<double>(clock_.NowNs() - begin) / kNsPerSecond;
  }

  const std::string socket_dir_;
  const uint64_t elements_;  // per chunk
  SteadyClock clock_;
  std::unique_ptr<MemClient> client_;
  double start_seconds_ = 0;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t kills = printer.Number("--kills", kKills),
                 chunk = printer.Number("--chunk-mebibytes", kChunkMebibytes) * kMiB;
  const uint64_t pool = kPoolChunks * chunk;
  const std::string size = pool % kGiB == 0 ? std::to_string(pool / kGiB) + " GiB"
                                            : std::to_string(pool / kMiB) + " MiB";

  std::vector<std::string> flags = {
      "--pool", std::to_string(pool), "--rcache-limit", std::to_string(2 * chunk), "--log-level",
      "error",  "--keeper",           "process"};
  flags.insert(flags.end(), printer.arguments().begin(), printer.arguments().end());
  const ServerProcess server = OrDie(ServerProcess::Start(flags));
  RestartBench bench(server.socket_dir(), chunk);

  double worst = 0;
  for (uint64_t i = 0; i < kills; ++i) {
    if (i > 0 && i % kKills == 0) bench.RenewKeeper();
    worst = std::max(worst, bench.KillAfterAStep(static_cast<Version>(i)));
  }

  bench.Detach();
  printer.Add({.bench = "restart",
               .row = "kill -9 to first answer, " + size,
               .value = worst,
               .unit = "s",
               .against = "1 s",
               .ratio = kLimitSeconds / worst,
               .target = 1.0});

  printer.Add({.bench = "restart",
               .row = "start with a new pool, " + size,
               .value = bench.start_seconds(),
               .unit = "s",
               .against = "going on with the kept pool",
               .ratio = worst / bench.start_seconds(),
               .target = std::nullopt});
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
