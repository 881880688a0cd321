// failure_sweep: makes the k-th call of one function fail in one process of a three-step job, for
// every function and k, and checks the outcome. Each run has a memserver with its keeper, a job in
// which the call fails, and a job after it.
//
//   failure_sweep                    500 of all failures, chosen by --seed
//   failure_sweep --all              every one of them
//   failure_sweep --victim memserver --call mmap --at 3    one of them, with the outputs
// What every run must show: nobody hangs (10 s) and no signal ends a process; a process that ends
// has a documented exit code and an error of the catalogue; a job that goes on has the bits of the
// undisturbed one; the job after it runs; everything held returns to zero; memserver ends in order
// and leaves no file. A memserver that lacks a few bytes for itself says so and ends
// (base/system/last_words.h): its keeper must have started it again.
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "shm/socket_path.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/sweep.h"

namespace tidepool::testing {
namespace {

constexpr int64_t kLimit = 30 * kNsPerSecond;

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
  // Which calls of the victim can fail: those of the start, the first job and the end, not those of
  // the second job.
  CallPlaces Places() const {
    CallPlaces places;
    for (uint32_t call = 0; call < kFailCalls; ++call) {
      for (uint64_t k = 1; k <= counts_[0][call]; ++k) places[call].push_back(k);
      for (uint64_t k = counts_[1][call] + 1; k <= counts_[2][call]; ++k) places[call].push_back(k);
    }
    return places;
  }

 private:
  bool good() const { return outcome_.wrong.empty(); }
  void TakeCounts(size_t after) {
    for (uint32_t call = 0; call < kFailCalls; ++call) counts_[after][call] = page_->counts[call];
  }
  void Fail(const std::string& what) {
    if (good()) outcome_.wrong = what;
    for (const auto& process : processes_)
      outcome_.output += "--- " + std::to_string(process->pid()) + "\n" + process->Output();
    KillDaemon(sockets_.path());
  }
  ChildProcess* Start(const std::vector<std::string>& command, bool with_shim) {
    processes_.push_back(std::make_unique<ChildProcess>(
        command, with_shim ? page_.Environment() : std::vector<std::string>()));
    return processes_.back().get();
  }

  void StartServer(bool with_shim) {
    server_ = Start(MemserverCommand(sockets_.path(),
                                     {"--keeper", "process", "--lease", "2s", "--pool", "1MiB"}),
                    with_shim);
    if (!server_->WaitForOutput("\"ready\"", kLimit) && !with_shim) Fail("memserver did not start");
  }

  // The first memserver may refuse to start, or end. Then the next one starts immediately: by the
  // keeper if a memserver had spoken to it, or else by hand, also beside a keeper that waits for
  // its first word.
  void StartVictim() {
    StartServer(true);
    if (!good() || !server_->Wait(0)) return;
    outcome_.server_ended = true;
    ExpectOrder(server_, "memserver");
    if (!good()) return;
    if (!WaitForOutput("ended without a farewell", 200 * kNsPerMs)) return StartServer(false);
    if (!WaitForOutput("\"ready\"", kLimit)) Fail("no memserver became ready");
  }
  // Waits for output of the first memserver and those that its keeper starts.
  bool WaitForOutput(const std::string& text, int64_t timeout_ns) {
    const int64_t end = clock_.NowNs() + timeout_ns;
    while (server_->Output().find(text) == std::string::npos) {
      if (clock_.NowNs() > end) return false;
      clock_.SleepNs(kNsPerMs);
    }
    return true;
  }

  // Checks that the process has ended as a program should.
  void ExpectOrder(ChildProcess* process, const char* name) {
    const std::string why = WhyNotInOrder(process, kLimit);
    if (!why.empty()) Fail(std::string(name) + " " + why);
  }

  void FirstJob() {
    const bool with_shim = failure_.victim == Victim::kTrainer;
    ChildProcess* trainer = Start(JobCommand("first"), with_shim);
    ExpectOrder(trainer, "the trainer");
    if (!good()) return;
    outcome_.job_ended = trainer->Wait(0)->exit_code != 0;
    if (!outcome_.job_ended) ExpectBits(*trainer);
    // When it ended, its keeper has started it again, and the job went on.
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
    return ThinCommand(sockets_.path(), {"--name", name, "--steps", "3", "--connect-timeout-ms",
                                         "2000", "--server-timeout-ms", "20000"});
  }

  void ExpectBits(const ChildProcess& trainer) {
    const std::string output = trainer.Output();
    const size_t at = output.find("hash ");
    const std::string hash =
        at == std::string::npos ? "none" : output.substr(at, output.find(' ', at + 5) - at);
    static std::mutex guard;
    static std::string expected;  // the first run is undisturbed
    const std::lock_guard lock(guard);
    if (expected.empty()) expected = hash;
    if (hash != expected) Fail("other bits: " + hash + " in place of " + expected);
  }

  // True when the server is gone. A keeper that dies leaves its socket's file, which the next one
  // replaces.
  bool IsOver() {
    const std::string left = shm::KeeperSocketPath(sockets_.path());
    for (const auto& entry : std::filesystem::directory_iterator(sockets_.path())) {
      if (failure_.victim != Victim::kKeeper || entry.path() != left || !server_->Wait(0))
        return false;
    }
    return true;
  }

  // A memserver that lacks memory to end in order is started again by its keeper: ends the next one
  // as well.
  void EndAll() {
    pid_t told = 0;
    const int64_t end = clock_.NowNs() + kLimit;
    while (!IsOver()) {
      pid_t pid = 0;
      std::ifstream(shm::LockFilePath(sockets_.path())) >> pid;
      if (pid > 0 && pid != told &&
          std::filesystem::exists(shm::AdminSocketPath(sockets_.path())) && kill(pid, SIGINT) == 0)
        told = pid;
      if (clock_.NowNs() > end)
        return Fail(told == 0 ? "no memserver is left to be ended"
                              : "files are left in the socket directory");
      clock_.SleepNs(kNsPerMs);
    }
    outcome_.server_ended |= told != server_->pid();
    ExpectOrder(server_, "memserver");
    // A keeper that replaced a dead one and has not heard a farewell yet would start a memserver
    // that nobody asks for.
    if (failure_.victim == Victim::kKeeper) KillDaemon(sockets_.path());
  }

  const Failure failure_;
  PageFile page_;
  const TemporaryDirectory sockets_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  ChildProcess* server_ = nullptr;
  // Counts after the first job, after the second, and after all.
  std::array<std::array<uint64_t, kFailCalls>, 3> counts_{};
  Outcome outcome_;
};

Outcome Play(const Failure& failure, CallPlaces* places) {
  Run run(failure);
  Outcome outcome = run.Play();
  if (places != nullptr) *places = run.Places();
  return outcome;
}

}  // namespace
}  // namespace tidepool::testing

int main(int argc, char** argv) {
  using tidepool::testing::Victim;
  return tidepool::testing::SweepMain(
      argc, argv,
      {.victims = {Victim::kMemserver, Victim::kKeeper, Victim::kTrainer},
       .play = tidepool::testing::Play});
}
