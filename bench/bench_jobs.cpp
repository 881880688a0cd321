// bench_jobs: the total rate of jobs with default flags on one machine, compared with one of them
// alone; and of one beside busy optimizer workers.
//
// Trainers are processes, as users start them. Rounds of all ways alternate; a way's rate is
// counted over a window that begins when each of its jobs trains and has had time to notice the
// others. With one compute thread per rank (one CPU) there is nothing to share, and rows are 1.
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"

namespace tidepool::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp =
    "bench_jobs [--json FILE] [--preset NAME] [--pool SIZE] [--milliseconds N] [--rounds N]\n"
    "Trainers of a model (default tiny) with default flags on one memserver (pool: 128MiB): one, "
    "two, four, and one beside a job whose\n"
    "updates keep the optimizer workers busy. Each is counted for N milliseconds (default 3000), "
    "in N rounds (default 5).\n";
constexpr double kTogether = 0.9, kNoSlower = 0.97;
constexpr int64_t kStartNs = 300 * kNsPerSecond;
// libgomp's default, set as if by the user: disables the watch.
constexpr const char* kSpinning = "GOMP_SPINCOUNT=300000";

struct Stage {
  std::string socket_dir, out_dir, preset;
  int64_t settle_ns, window_ns;
};

// A trainer that runs until this object is destroyed.
class Trainer {
 public:
  Trainer(const Stage& stage, const std::string& name, const char* variable)
      : metrics_(stage.out_dir + "/" + name + "/metrics.jsonl") {
    std::error_code error;
    fs::remove_all(stage.out_dir + "/" + name, error);
    const std::string program =
        (fs::read_symlink("/proc/self/exe", error).parent_path() / "trainer").string();
    std::vector<std::string> words{
        program,   "run",          "--preset",       stage.preset,   "--job",
        name,      "--steps",      "10000000",       "--eval-every", "0",
        "--quiet", "--socket-dir", stage.socket_dir, "--out",        stage.out_dir + "/" + name};

    std::vector<char*> arguments, variables;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (char** inherited = environ; *inherited != nullptr; ++inherited)
      variables.push_back(*inherited);
    std::string own = variable == nullptr ? "" : variable;
    if (!own.empty()) variables.push_back(own.data());
    variables.push_back(nullptr);

    if (posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments.data(), variables.data()) !=
        0)
      Die("cannot start " + program);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

  // Steps reported so far.
  int64_t Steps() const {
    std::ifstream file(metrics_, std::ios::binary);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  }
  void CheckAlive() const {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) Die("a trainer has ended: " + metrics_);
  }
  // CPU seconds of all its threads.
  double CpuSeconds() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    std::string skipped;
    for (int field = 0; field < 11; ++field) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  const std::string metrics_;
  pid_t pid_ = -1;
};

// A job whose steps consist of updates and copies only, in a separate process.
class Updater {
 public:
  explicit Updater(const std::string& socket_dir) : steps_(SharedCounter()), pid_(fork()) {
    if (pid_ < 0) Die("no process");
    if (pid_ > 0) return;
    ServedJob job({.name = "updates",
                   .chunks = 4,
                   .chunk_elements = 1024 * 1024,
                   .rcache_bytes = 4 * kMiB,
                   .spin_ns = 0},
                  socket_dir);
    for (;; steps_->fetch_add(1, std::memory_order_relaxed)) job.Step();
  }
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;
  ~Updater() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(steps_, sizeof *steps_);
  }

  double Steps() const { return static_cast<double>(steps_->load(std::memory_order_relaxed)); }

 private:
  // Makes a counter in a page shared by both processes.
  static std::atomic<uint64_t>* SharedCounter() {
    constexpr size_t kBytes = sizeof(std::atomic<uint64_t>);
    void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) Die("no shared page");
    return new (page) std::atomic<uint64_t>(0);
  }

  std::atomic<uint64_t>* const steps_;
  const pid_t pid_;
};

struct Rate {
  double steps_per_second = 0, steps_per_cpu_second = 0;
  double updates_per_second = 0;  // steps of the concurrent updater
};

Rate RateOf(const Stage& stage, uint32_t jobs, const char* variable = nullptr,
            const Updater* updater = nullptr) {
  SteadyClock clock;
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (uint32_t job = 0; job < jobs; ++job)
    trainers.push_back(std::make_unique<Trainer>(stage, "job-" + std::to_string(job), variable));

  const int64_t limit = clock.NowNs() + kStartNs;
  for (const auto& trainer : trainers) {
    for (; trainer->Steps() < 3; clock.SleepNs(10 * kNsPerMs)) {
      trainer->CheckAlive();
      if (clock.NowNs() > limit) Die("a trainer makes no steps");
    }
  }

  clock.SleepNs(stage.settle_ns);
  const auto sum = [&](const auto& of) {
    double all = 0;
    for (const auto& trainer : trainers) all += static_cast<double>(of(*trainer));
    return all;
  };
  const auto steps = [](const Trainer& trainer) { return trainer.Steps(); };
  const auto cpu = [](const Trainer& trainer) { return trainer.CpuSeconds(); };
  const auto updates = [&] { return updater == nullptr ? 0.0 : updater->Steps(); };

  const int64_t begin_ns = clock.NowNs();
  const double steps_before = sum(steps), cpu_before = sum(cpu), updates_before = updates();
  clock.SleepNs(stage.window_ns);

  const double made = std::max(1.0, sum(steps) - steps_before);
  const double seconds = static_cast<double>(clock.NowNs() - begin_ns) / kNsPerSecond;
  return {.steps_per_second = made / seconds,
          .steps_per_cpu_second = made / std::max(0.01, sum(cpu) - cpu_before),
          .updates_per_second = (updates() - updates_before) / seconds};
}

Rate RateBesideUpdates(const Stage& stage) {
  const Updater updater(stage.socket_dir);
  return RateOf(stage, 1, nullptr, &updater);
}

double UpdatesAlone(const Stage& stage) {
  SteadyClock clock;
  const Updater updater(stage.socket_dir);
  clock.SleepNs(stage.settle_ns);

  const int64_t begin_ns = clock.NowNs();
  const double before = updater.Steps();
  clock.SleepNs(stage.window_ns);
  return (updater.Steps() - before) * kNsPerSecond / static_cast<double>(clock.NowNs() - begin_ns);
}

// The name of a row, and of its baseline.
struct Title {
  const char* name;
  const char* unit;
  const char* against;
  std::optional<double> target = {};
};

// Adds a row of `values` compared with `peers`, round by round.
void Add(const Title& title, const std::vector<double>& values, const std::vector<double>& peers,
         RowPrinter* printer) {
  Row row;
  row.bench = "jobs";
  row.row = title.name;
  row.value = Median(values);
  row.unit = title.unit;
  row.against = title.against;

  std::vector<double> ratios;
  for (size_t round = 0; round < values.size(); ++round)
    ratios.push_back(values[round] / peers[round]);
  row.ratio = Median(ratios);
  row.target = title.target;
  printer->Add(row, SpreadOf(ratios));
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t rounds = printer.Number("--rounds", 5);
  const auto window_ns = static_cast<int64_t>(printer.Number("--milliseconds", 3000)) * kNsPerMs;
  const std::string preset = printer.Word("--preset", "tiny"),
                    pool = printer.Word("--pool", "128MiB");
  printer.NoMoreArguments();

  const ServerProcess server =
      OrDie(ServerProcess::Start({"--pool", pool, "--lease", "0s", "--log-level", "error"}));
  const std::string out_dir = server.socket_dir() + "/out";
  fs::create_directory(out_dir);
  const Stage stage{.socket_dir = server.socket_dir(),
                    .out_dir = out_dir,
                    .preset = preset,
                    .settle_ns = window_ns / 2,
                    .window_ns = window_ns};

  std::vector<double> alone, alone_by_cpu, spinning, two, four, beside, beside_by_cpu, both;
  const std::vector<double> whole(rounds, 1.0);

  for (uint64_t round = 0; round < rounds; ++round) {
    const Rate one = RateOf(stage, 1);
    alone.push_back(one.steps_per_second);
    alone_by_cpu.push_back(one.steps_per_cpu_second);
    two.push_back(RateOf(stage, 2).steps_per_second);
    four.push_back(RateOf(stage, 4).steps_per_second);
    spinning.push_back(RateOf(stage, 1, kSpinning).steps_per_second);

    const Rate busy = RateBesideUpdates(stage);
    beside.push_back(busy.steps_per_second);
    beside_by_cpu.push_back(busy.steps_per_cpu_second);
    both.push_back(busy.steps_per_second / one.steps_per_second +
                   busy.updates_per_second / std::max(1.0, UpdatesAlone(stage)));
  }

  const char* rate = "steps/s";
  Add({"one job", rate, "the same, its threads spin whatever else runs", kNoSlower}, alone,
      spinning, &printer);
  Add({"two jobs together", rate, "one job", kTogether}, two, alone, &printer);
  Add({"four jobs together", rate, "one job", kTogether}, four, alone, &printer);
  Add({"one job beside busy optimizer workers", rate, "beside idle ones"}, beside, alone, &printer);
  Add({"the same, for each second of CPU that it had", "steps", "beside idle ones", kTogether},
      beside_by_cpu, alone_by_cpu, &printer);
  Add({"that job and the one that is updated, a share of alone each", "shares", "one", kTogether},
      both, whole, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
