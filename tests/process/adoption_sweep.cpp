// adoption_sweep: makes the k-th call of one function fail in a memserver that adopts a job, or in
// the keeper that gives it, for every function and k, and looks what becomes of the job.
//
//   adoption_sweep                   a few dozen of all failures, chosen by --seed
//   adoption_sweep --all             every one of them
//   adoption_sweep --victim memserver --call madvise --at 1    one of them, with the outputs
// A run: a memserver trains a job and hands it to its keeper; the next one, in which the call
// fails, adopts it, serves its rank and ends, or refuses to start; another one adopts the job where
// it is left. What every run must show: whoever ends, ends in order and says why; nothing of the
// kept memory is given up; the rank ends its training without an error, with the bits of an
// undisturbed run.
#include <array>
#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/sweep.h"

namespace tidepool::testing {
namespace {

constexpr int64_t kLimit = 60 * kNsPerSecond;

class Adoption {
 public:
  explicit Adoption(const Failure& failure) : failure_(failure), page_(failure) {}
  ~Adoption() { KillDaemon(sockets_.path()); }
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  Outcome Play() {
    LeaveJob();
    if (good() && missed_) return outcome_;
    if (good()) AdoptWithFailure();
    counts_ = Counts();
    page_->at = 0;
    if (good()) AdoptAgain();
    outcome_.failed = page_->failed != 0;
    return outcome_;
  }
  // On a machine that stood still the job was done before it could be left.
  bool missed() const { return missed_; }
  // Those before the rank's end: what fails later is failure_sweep's.
  CallPlaces Places() const {
    CallPlaces places;
    for (uint32_t call = 0; call < kFailCalls; ++call) {
      for (uint64_t k = before_[call] + 1; k <= counts_[call]; ++k) places[call].push_back(k);
    }
    return places;
  }

 private:
  using CallCounts = std::array<uint64_t, kFailCalls>;

  bool good() const { return outcome_.wrong.empty(); }
  void Fail(const std::string& what) {
    if (!good()) return;
    outcome_.wrong = what;
    for (const auto& process : processes_)
      outcome_.output += "--- " + std::to_string(process->pid()) + "\n" + process->Output();
  }
  CallCounts Counts() {
    CallCounts counts{};
    for (uint32_t call = 0; call < kFailCalls; ++call) counts[call] = page_->counts[call];
    return counts;
  }
  ChildProcess* Start(const std::vector<std::string>& command, bool with_shim) {
    processes_.push_back(std::make_unique<ChildProcess>(
        command, with_shim ? page_.Environment() : std::vector<std::string>()));
    return processes_.back().get();
  }
  ChildProcess* StartServer(bool with_shim) {
    return Start(MemserverCommand(sockets_.path(), {"--keeper", "process", "--no-respawn",
                                                    "--lease", "60s", "--pool", "1MiB"}),
                 with_shim);
  }

  // A job that waits for its server, whose memory is with the keeper.
  void LeaveJob() {
    page_->at = 0;
    ChildProcess* first = StartServer(failure_.victim == Victim::kKeeper);
    if (!first->WaitForOutput("\"ready\"", kLimit))
      return Fail("the first memserver did not start");
    trainer_ =
        Start(ThinCommand(sockets_.path(), {"--name", "job", "--steps", "20", "--norms",
                                            "--pause-ms", "4", "--server-timeout-ms", "120000"}),
              false);
    if (!trainer_->WaitForOutput("norm 5 ", kLimit)) return Fail("the trainer did not train");
    first->Signal(SIGTERM);
    const std::string why = WhyNotInOrder(first, kLimit);
    if (!why.empty()) return Fail("the first memserver " + why);
    if (!first->WaitForOutput("\"stopped", kLimit))
      return Fail("the first memserver did not say how it stopped");
    missed_ = first->Output().find("the jobs stay with the keeper") == std::string::npos;
    before_ = Counts();
    page_->at = failure_.at;
  }

  // Until the job has ended, or the server.
  void AdoptWithFailure() {
    ChildProcess* server = StartServer(failure_.victim == Victim::kMemserver);
    SteadyClock clock;
    const int64_t end = clock.NowNs() + kLimit;
    while (!server->Wait(0) && !trainer_->Wait(0)) {
      if (clock.NowNs() > end) return Fail("the job stands still");
      clock.SleepNs(kNsPerMs);
    }
    outcome_.server_ended = server->Wait(0).has_value();
    if (!outcome_.server_ended) server->Signal(SIGINT);
    const std::string why = WhyNotInOrder(server, kLimit);
    if (!why.empty()) return Fail("the memserver that adopts " + why);
    if (server->Output().find("given up") != std::string::npos) Fail("kept memory was given up");
  }

  void AdoptAgain() {
    if (!trainer_->Wait(0)) {
      ChildProcess* server = StartServer(false);
      // A server that failed behind the job's goodbye has left none.
      if (!trainer_->Wait(kLimit)) return Fail("the job did not end");
      server->Signal(SIGINT);
      const std::string why = WhyNotInOrder(server, kLimit);
      if (!why.empty()) return Fail("the next memserver " + why);
    }
    outcome_.job_ended = trainer_->Wait(0)->exit_code != 0;
    if (outcome_.job_ended) return Fail("the job ended with an error");
    ExpectBits(trainer_->Output());
  }

  void ExpectBits(const std::string& output) {
    const size_t at = output.find("hash ");
    const std::string hash =
        at == std::string::npos ? "none" : output.substr(at, output.find(' ', at + 5) - at);
    static std::mutex guard;
    static std::string expected;  // the first run is undisturbed
    const std::lock_guard lock(guard);
    if (expected.empty()) expected = hash;
    if (hash != expected) Fail("other bits: " + hash + " in place of " + expected);
  }

  const Failure failure_;
  PageFile page_;
  const TemporaryDirectory sockets_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  ChildProcess* trainer_ = nullptr;
  bool missed_ = false;
  CallCounts before_{}, counts_{};  // when the job was left, and when it or the server has ended
  Outcome outcome_;
};

Outcome Play(const Failure& failure, CallPlaces* places) {
  for (;;) {
    Adoption adoption(failure);
    Outcome outcome = adoption.Play();
    if (adoption.missed()) continue;
    if (places != nullptr) *places = adoption.Places();
    return outcome;
  }
}

}  // namespace
}  // namespace tidepool::testing

int main(int argc, char** argv) {
  using tidepool::testing::Victim;
  return tidepool::testing::SweepMain(argc, argv,
                                      {.victims = {Victim::kMemserver, Victim::kKeeper},
                                       .samples = 150,
                                       .verdict = "no job lost, nobody hung",
                                       .play = tidepool::testing::Play});
}
