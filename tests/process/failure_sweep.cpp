// failure_sweep: makes the k-th call of one function fail in one process of a three-step job, for every function and k, and looks what
// becomes of it. Each run has a memserver with its keeper, a job in which the call fails, and a job after it.
//
//   failure_sweep                    500 of all failures, chosen by --seed
//   failure_sweep --all              every one of them
//   failure_sweep --victim memserver --call mmap --at 3    one of them, with the outputs
// What every run must show: nobody hangs (10 s) and nobody is ended by a signal; who ends, ends with a documented exit code and an error of
// the catalogue; a job that goes on has the bits of the undisturbed one; the job after it runs; everything held returns to zero; memserver
// ends in order and leaves no file. A memserver that lacks a few bytes for itself says so and ends (base/last_words.h): its keeper must
// have started it again.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error_catalog.h"
#include "base/random.h"
#include "shm/socket_path.h"
#include "tests/process/daemon_fixture.h"
#include "tests/process/fail_page.h"
#include "tests/process/memserver_process.h"

namespace tidepool::testing {
namespace {

constexpr int64_t kLimit = 30 * kNsPerSecond;

enum class Victim { kMemserver, kKeeper, kTrainer };
const std::map<std::string, Victim> kVictims{{"memserver", Victim::kMemserver}, {"keeper", Victim::kKeeper}, {"trainer", Victim::kTrainer}};

const char* NameOf(Victim victim) {
  return victim == Victim::kMemserver ? "memserver" : victim == Victim::kKeeper ? "keeper" : "trainer";
}

struct Failure {
  Victim victim;
  uint32_t call;
  uint64_t at;  // 0: nothing fails
};

std::string Describe(const Failure& failure) {
  return std::string("--victim ") + NameOf(failure.victim) + " --call " + kFailCallNames[failure.call] + " --at " +
         std::to_string(failure.at);
}

struct Outcome {
  std::string wrong;       // empty: all is as it should be
  bool failed = false;     // the call was reached
  bool job_ended = false;  // the first job ended with an error
  bool server_ended = false;
  std::string output;  // of everybody
};

// The page that the shim maps, in a file of its own.
class PageFile {
 public:
  explicit PageFile(const Failure& failure) : path_(directory_.path() + "/page") {
    const UniqueFd fd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    TP_CHECK(ftruncate(fd.get(), sizeof(FailPage)) == 0, "room for the page");
    void* data = mmap(nullptr, sizeof(FailPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    TP_CHECK(data != MAP_FAILED, "the page is mapped");
    page_ = new (data) FailPage();
    page_->in_keeper = failure.victim == Victim::kKeeper ? 1 : 0;
    page_->call = failure.call;
    page_->at = failure.at;
  }
  ~PageFile() { munmap(page_, sizeof(FailPage)); }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;
  FailPage* operator->() { return page_; }
  std::vector<std::string> Environment() const {
    return {std::string("LD_PRELOAD=") + TIDEPOOL_FAIL_SHIM, std::string(kFailPageVariable) + "=" + path_};
  }

 private:
  const TemporaryDirectory directory_;
  const std::string path_;
  FailPage* page_ = nullptr;
};

// One run, from nothing to nothing.
class Run {
 public:
  explicit Run(const Failure& failure) : failure_(failure), page_(failure) {}

  Outcome Play() {
    const int64_t begin = clock_.NowNs();
    if (failure_.victim == Victim::kTrainer) {
      StartServer(false);
    } else {
      StartVictim();
    }
    if (good()) FirstJob();
    TakeCounts(0);
    page_->at = 0;
    if (good()) SecondJob();
    page_->at = failure_.at;
    TakeCounts(1);
    if (good()) EndAll();
    TakeCounts(2);
    if (good() && clock_.NowNs() - begin > kLimit) Fail("the run took too long");
    outcome_.failed = page_->failed != 0;
    return outcome_;
  }
  // Which calls of it can fail: those of the start, the first job and the end, not those of the second job.
  std::vector<uint64_t> Places(uint32_t call) const {
    std::vector<uint64_t> places;
    for (uint64_t k = 1; k <= counts_[0][call]; ++k) places.push_back(k);
    for (uint64_t k = counts_[1][call] + 1; k <= counts_[2][call]; ++k) places.push_back(k);
    return places;
  }

 private:
  bool good() const { return outcome_.wrong.empty(); }
  void TakeCounts(size_t after) {
    for (uint32_t call = 0; call < kFailCalls; ++call) counts_[after][call] = page_->counts[call];
  }
  void Fail(const std::string& what) {
    if (good()) outcome_.wrong = what;
    for (const auto& process : processes_) outcome_.output += "--- " + std::to_string(process->pid()) + "\n" + process->Output();
    KillDaemon(sockets_.path());
  }
  ChildProcess* Start(const std::vector<std::string>& command, bool with_shim) {
    processes_.push_back(std::make_unique<ChildProcess>(command, with_shim ? page_.Environment() : std::vector<std::string>()));
    return processes_.back().get();
  }

  void StartServer(bool with_shim) {
    server_ = Start(MemserverCommand(sockets_.path(), {"--keeper", "process", "--lease", "2s", "--pool", "1MiB"}), with_shim);
    if (!server_->WaitForOutput("\"ready\"", kLimit) && !with_shim) Fail("memserver did not start");
  }

  // The first memserver may refuse to start, or end. Then the next one starts at once: by the keeper where it had spoken to one, or else by
  // hand, also beside a keeper that waits for its first word.
  void StartVictim() {
    StartServer(true);
    if (!good() || !server_->Wait(0)) return;
    outcome_.server_ended = true;
    ExpectOrder(server_, "memserver");
    if (!good()) return;
    if (!WaitForOutput("ended without a farewell", 200 * kNsPerMs)) return StartServer(false);
    if (!WaitForOutput("\"ready\"", kLimit)) Fail("no memserver became ready");
  }
  // Of the first memserver and those that its keeper starts.
  bool WaitForOutput(const std::string& text, int64_t timeout_ns) {
    const int64_t end = clock_.NowNs() + timeout_ns;
    while (server_->Output().find(text) == std::string::npos) {
      if (clock_.NowNs() > end) return false;
      clock_.SleepNs(kNsPerMs);
    }
    return true;
  }

  // It has ended as a program should.
  void ExpectOrder(ChildProcess* process, const char* name) {
    static const std::set<int> kDocumented{kExitOk,           kExitFailed,     kExitUsage,     kExitNoServer, kExitNotFound,
                                           kExitRefused,      kExitTimeout,    kExitCorrupt,   kExitVersion,  kExitHostUnfit,
                                           kExitDeviceMemory, kExitHostMemory, kExitNonFinite, kExitJobKept};
    const auto ended = process->Wait(kLimit);
    if (!ended) return Fail(std::string(name) + " hangs");
    if (ended->signal != 0) return Fail(std::string(name) + " was ended by signal " + std::to_string(ended->signal));
    if (kDocumented.count(ended->exit_code) == 0) return Fail(std::string(name) + " ended with " + std::to_string(ended->exit_code));
    const bool told = process->Output().find("error[TP") != std::string::npos;
    if (ended->exit_code != 0 && !told) Fail(std::string(name) + " did not say why it ended");
  }

  void FirstJob() {
    const bool with_shim = failure_.victim == Victim::kTrainer;
    ChildProcess* trainer = Start(JobCommand("first"), with_shim);
    ExpectOrder(trainer, "the trainer");
    if (!good()) return;
    outcome_.job_ended = trainer->Wait(0)->exit_code != 0;
    if (!outcome_.job_ended) ExpectBits(*trainer);
    // Its keeper has started it again, and the job went on.
    if (!server_->Wait(0)) return;
    outcome_.server_ended = true;
    ExpectOrder(server_, "memserver");
  }

  void SecondJob() {
    ChildProcess* trainer = Start(JobCommand("second"), false);
    ExpectOrder(trainer, "the trainer of the second job");
    if (!good()) return;
    if (trainer->Wait(0)->exit_code != 0) return Fail("the second job failed");
    ExpectBits(*trainer);
    if (WaitForHoldings(sockets_.path(), kNothing, kLimit) == kNothing) return;
    Fail("something is still held: " + AskAdmin(sockets_.path(), "/v1/status"));
  }

  std::vector<std::string> JobCommand(const char* name) const {
    return ThinCommand(sockets_.path(), {"--name", name, "--steps", "3", "--connect-timeout-ms", "2000", "--server-timeout-ms", "20000"});
  }

  void ExpectBits(const ChildProcess& trainer) {
    const std::string output = trainer.Output();
    const size_t at = output.find("hash ");
    const std::string hash = at == std::string::npos ? "none" : output.substr(at, output.find(' ', at + 5) - at);
    static std::mutex guard;
    static std::string expected;  // the first run is undisturbed
    const std::lock_guard lock(guard);
    if (expected.empty()) expected = hash;
    if (hash != expected) Fail("other bits: " + hash + " in place of " + expected);
  }

  // A keeper that dies leaves its socket's file, which the next one replaces.
  bool IsOver() {
    const std::string left = shm::KeeperSocketPath(sockets_.path());
    for (const auto& entry : std::filesystem::directory_iterator(sockets_.path())) {
      if (failure_.victim != Victim::kKeeper || entry.path() != left || !server_->Wait(0)) return false;
    }
    return true;
  }

  // A memserver that cannot end in order for want of memory is started again by its keeper: the next one is told as well.
  void EndAll() {
    pid_t told = 0;
    const int64_t end = clock_.NowNs() + kLimit;
    while (!IsOver()) {
      pid_t pid = 0;
      std::ifstream(shm::LockFilePath(sockets_.path())) >> pid;
      if (pid > 0 && pid != told && std::filesystem::exists(shm::AdminSocketPath(sockets_.path())) && kill(pid, SIGINT) == 0) told = pid;
      if (clock_.NowNs() > end) return Fail(told == 0 ? "no memserver is left to be ended" : "files are left in the socket directory");
      clock_.SleepNs(kNsPerMs);
    }
    outcome_.server_ended |= told != server_->pid();
    ExpectOrder(server_, "memserver");
    // One that took the place of a dead keeper and has heard no farewell yet would start a memserver that nobody asks for.
    if (failure_.victim == Victim::kKeeper) KillDaemon(sockets_.path());
  }

  const Failure failure_;
  PageFile page_;
  const TemporaryDirectory sockets_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  ChildProcess* server_ = nullptr;
  std::array<std::array<uint64_t, kFailCalls>, 3> counts_{};  // after the first job, the second, and all
  Outcome outcome_;
};

using Places = std::map<std::pair<Victim, uint32_t>, std::vector<uint64_t>>;

// The calls of an undisturbed run.
Places FindPlaces() {
  Places places;
  for (const auto& [name, victim] : kVictims) {
    Run run({victim, 0, 0});
    const Outcome outcome = run.Play();
    TP_CHECK(outcome.wrong.empty(), (outcome.wrong + "\n" + outcome.output).c_str());
    for (uint32_t call = 0; call < kFailCalls; ++call) places[{victim, call}] = run.Places(call);
  }
  return places;
}

// All of them, in an order in which the first are a fair sample: each function once, each again, and so on, at k chosen by `random`; rare
// functions come at every k.
std::vector<Failure> InOrder(const Places& places, SplitMix64* random) {
  std::map<std::pair<Victim, uint32_t>, std::vector<uint64_t>> shuffled = places;
  size_t longest = 0;
  for (auto& [key, calls] : shuffled) {
    for (size_t i = 0; i + 1 < calls.size(); ++i) std::swap(calls[i], calls[i + random->Below(calls.size() - i)]);
    longest = std::max(longest, calls.size());
  }
  std::vector<Failure> failures;
  for (size_t turn = 0; turn < longest; ++turn) {
    for (const auto& [key, calls] : shuffled) {
      if (turn < calls.size()) failures.push_back({key.first, key.second, calls[turn]});
    }
  }
  return failures;
}

struct Row {
  uint64_t runs = 0, failed = 0, jobs_ended = 0, servers_ended = 0;
};

using Table = std::map<std::pair<Victim, uint32_t>, Row>;

// Plays them on `threads` threads until in `wanted` runs the call was reached: threads and waits make the last calls of a run come or not
// come, and then the next in order takes the place. False at the first that is wrong.
bool PlayUntil(uint64_t wanted, const std::vector<Failure>& failures, uint32_t threads, Table* table) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> reached{0};
  std::atomic<bool> good{true};
  std::mutex guard;
  const auto play_some = [&] {
    for (size_t i = next++; i < failures.size() && good && reached < wanted; i = next++) {
      const Outcome outcome = Run(failures[i]).Play();
      const std::lock_guard lock(guard);
      Row& row = (*table)[{failures[i].victim, failures[i].call}];
      ++row.runs;
      row.failed += outcome.failed ? 1 : 0;
      reached += outcome.failed ? 1 : 0;
      row.jobs_ended += outcome.job_ended ? 1 : 0;
      row.servers_ended += outcome.server_ended ? 1 : 0;
      if (outcome.wrong.empty()) continue;
      std::printf("FAILED: %s: %s\n%s\n", Describe(failures[i]).c_str(), outcome.wrong.c_str(), outcome.output.c_str());
      good = false;
    }
  };
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back(play_some);
  play_some();
  for (std::thread& other : others) other.join();
  return good;
}

// Returns in how many runs the call was reached.
uint64_t Print(const Table& table, const Places& places) {
  uint64_t runs = 0, failed = 0;
  std::printf("%-10s %-13s %7s %6s %8s %11s %13s\n", "victim", "call", "calls", "runs", "failed", "jobs ended", "server ended");
  for (const auto& [key, row] : table) {
    std::printf("%-10s %-13s %7llu %6llu %8llu %11llu %13llu\n", NameOf(key.first), kFailCallNames[key.second],
                static_cast<unsigned long long>(places.at(key).size()), static_cast<unsigned long long>(row.runs),
                static_cast<unsigned long long>(row.failed), static_cast<unsigned long long>(row.jobs_ended),
                static_cast<unsigned long long>(row.servers_ended));
    runs += row.runs;
    failed += row.failed;
  }
  std::printf("%llu runs, in %llu of them the call was reached\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(failed));
  return failed;
}

int Main(int argc, char** argv) {
  uint64_t seed = 1, samples = 500, at = 0;
  uint32_t threads = 6;  // a run mostly waits
  bool all = false;
  std::string victim, call;
  CLI::App app{"the k-th call of a function fails, for every k"};
  app.add_option("--seed", seed);
  app.add_option("--samples", samples);
  app.add_option("--jobs", threads, "runs at once");
  app.add_flag("--all", all);
  app.add_option("--victim", victim)->check(CLI::IsMember({"memserver", "keeper", "trainer"}));
  app.add_option("--call", call)->check(CLI::IsMember(std::vector<std::string>(kFailCallNames.begin(), kFailCallNames.end())));
  app.add_option("--at", at);
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  Places places = FindPlaces();
  std::erase_if(places, [&](const auto& entry) {
    return (!victim.empty() && entry.first.first != kVictims.at(victim)) || (!call.empty() && call != kFailCallNames[entry.first.second]);
  });
  SplitMix64 random(seed);
  std::vector<Failure> failures = InOrder(places, &random);
  if (at != 0) failures = {{places.begin()->first.first, places.begin()->first.second, at}};
  // Where every place is played, nothing is left to take the place of those that did not come.
  const uint64_t wanted = all ? failures.size() : std::min<uint64_t>(samples, failures.size());
  const bool whole = wanted == failures.size();
  Table table;
  const bool good = PlayUntil(wanted, failures, threads, &table);
  const uint64_t reached = Print(table, places);
  const bool enough = at != 0 || (whole ? reached * 10 >= wanted * 8 : reached >= wanted);
  std::printf("%s: seed %llu, %.1f s\n", good && enough ? "nothing lost, nobody hung" : "FAILED", static_cast<unsigned long long>(seed),
              static_cast<double>(clock.NowNs() - begin) / kNsPerSecond);
  return good && enough ? 0 : 1;
}

}  // namespace
}  // namespace tidepool::testing

int main(int argc, char** argv) {
  return tidepool::testing::Main(argc, argv);
}
