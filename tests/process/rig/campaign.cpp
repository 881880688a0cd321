#include "tests/process/rig/campaign.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error_catalog.h"
#include "tests/process/rig/daemon_fixture.h"

namespace tidepool::testing {
namespace {

constexpr int64_t kRoundLimitNs = 60 * kNsPerSecond;
constexpr int64_t kWaitLimitNs = 30 * kNsPerSecond;  // for one process to do one thing
const char* const kJob = "campaign";

std::vector<std::string> ServerCommand(const std::string& socket_dir, const Shape& shape) {
  std::vector<std::string> options{"--keeper", "process",           "--no-respawn", "--lease",
                                   "30s",      "--update-prefetch", "512"};
  options.insert(options.end(), {"--pool", shape.large ? "64MiB" : "8MiB"});
  if (shape.large)
    options.insert(options.end(), {"--rcache-limit", "64MiB", "--adam-threads", "2",
                                   "--copy-threads", shape.micro_batches == 1 ? "2" : "3"});
  return MemserverCommand(socket_dir, options);
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

// One run of the job, from nothing to nothing.
class Campaign::Round {
 public:
  Round(const RoundPlan& plan, Campaign* campaign)
      : plan_(plan),
        random_(&campaign->random_),
        at_rest_(campaign->at_rest_),
        norms_(plan.shape.world),
        hashes_(plan.shape.world) {
    trainers_.resize(plan.shape.world);
    must_be_told_.resize(plan.shape.world);
    old_output_.resize(plan.shape.world);
  }

  ~Round() { KillDaemon(directory_.path()); }

  RoundReport Play() {
    const int64_t end = clock_.NowNs() + kRoundLimitNs;
    StartServer();
    for (Rank rank = 0; rank < plan_.shape.world; ++rank)
      StartTrainer(rank, rank == 0 ? plan_.trainer_point : "", true);
    while (!AllDone() && good()) {
      if (clock_.NowNs() > end) Fail("the job did not come to its end in time");
      clock_.SleepNs(static_cast<int64_t>(500'000 + random_->Below(8'000'000)));
      StartAgainWhatEnded();
      if (report_.kills < plan_.kills) Kill();
      if (report_.losses < plan_.losses) LoseStates();
    }
    if (good()) Finish();
    report_.recoveries = static_cast<uint32_t>(
        Count(server_output_ + server_->Output(), "job found in kept memory"));
    return report_;
  }

  Outcome TakeOutcome() { return {std::move(states_), std::move(norms_), std::move(hashes_)}; }

 private:
  bool good() const { return report_.wrong.empty(); }

  void Fail(const std::string& what) {
    std::ostringstream text;
    text << what << "\n--- memserver:\n" << server_output_ << (server_ ? server_->Output() : "");
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      text << "\n--- rank " << rank << ":\n"
           << old_output_[rank] << (trainers_[rank] ? trainers_[rank]->Output() : "");
    }
    report_.wrong = text.str();
  }

  static std::vector<std::string> Armed(const std::string& point) {
    return point.empty() ? std::vector<std::string>()
                         : std::vector<std::string>{"TIDEPOOL_KILL_AT=" + point};
  }

  // The next one of the plan.
  void StartServer() {
    const bool planned = points_taken_ < plan_.server_points.size();
    StartServerAt(planned ? plan_.server_points[points_taken_] : "");
    ++points_taken_;
    kill_soon_ = planned && server_point_.empty();
  }

  void StartServerAt(const std::string& point) {
    if (server_) server_output_ += server_->Output();
    server_point_ = point;
    server_ = std::make_unique<ChildProcess>(ServerCommand(directory_.path(), plan_.shape),
                                             Armed(server_point_));
  }

  void StartTrainer(size_t rank, const std::string& point, bool stays) {
    if (trainers_[rank]) {
      TakeNorms(rank);
      old_output_[rank] += trainers_[rank]->Output();
    }
    std::vector<std::string> options{
        "--name", kJob, "--persistent", "--norms", "--server-timeout-ms", "30000"};
    const auto add = [&options](const char* flag, uint64_t value) {
      options.insert(options.end(), {flag, std::to_string(value)});
    };
    add("--world", plan_.shape.world);
    add("--rank", rank);
    add("--steps", plan_.shape.steps);
    add("--micro-batches", plan_.shape.micro_batches);
    add("--elements", plan_.shape.elements());
    if (plan_.shape.large) add("--chunks", 1);
    add("--pause-ms", static_cast<uint64_t>(plan_.pause_ms));
    if (plan_.shape.bf16) options.push_back("--bf16");
    options.insert(options.end(), {"--optimizer", NameOf(plan_.shape.rule()), "--states",
                                   NameOf(plan_.shape.states())});
    if (stays) options.push_back("--stay");
    if (rank == 0) options.insert(options.end(), {"--save", saves_.path()});
    trainers_[rank] =
        std::make_unique<ChildProcess>(ThinCommand(directory_.path(), options), Armed(point));
  }

  // Norms that a rank printed: a step that was sealed has one norm, whoever prints it and how
  // often.
  void TakeNorms(size_t rank) {
    std::istringstream lines(trainers_[rank]->Output());
    for (std::string word; lines >> word;) {
      if (word == "hash") {
        lines >> hashes_[rank];
      } else if (word == "norm") {
        uint64_t step = 0;
        std::string norm;
        lines >> step >> norm;
        const auto [found, is_new] = norms_[rank].emplace(step, norm);
        if (!is_new && found->second != norm)
          Fail("two norms of step " + std::to_string(step) + ": " + norm + " and " + found->second);
      }
    }
  }

  bool IsDone(size_t rank) const {
    return !must_be_told_[rank] && Count(trainers_[rank]->Output(), "hash ") > 0;
  }
  bool AllDone() {
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      if (!IsDone(rank)) return false;
    }
    return true;
  }

  // True when it had ended.
  bool StartServerAgain() {
    const auto ended = server_->Wait(0);
    if (!ended) return false;
    if (ended->signal == SIGKILL && !server_point_.empty())
      report_.points_hit.push_back(server_point_);
    if (ended->signal != SIGKILL)
      Fail("memserver ended by itself, with exit code " + std::to_string(ended->exit_code));
    StartServer();
    return true;
  }

  void StartAgainWhatEnded() {
    if (!StartServerAgain() && kill_soon_ && NormsPrinted() > random_->Below(30)) KillServer();
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      const auto ended = trainers_[rank]->Wait(0);
      if (!ended || (ended->exit_code == 0 && IsDone(rank))) continue;
      if (must_be_told_[rank] && ended->exit_code == kExitCorrupt &&
          Count(trainers_[rank]->Output(), "TP3014") == 1) {
        must_be_told_[rank] = false;
        StartTrainer(rank, "", true);
        continue;
      }
      if (ended->signal != SIGKILL)
        return Fail("rank " + std::to_string(rank) + " ended with exit code " +
                    std::to_string(ended->exit_code));
      StartTrainerAgain(rank, true);
    }
  }

  // After it was killed.
  void StartTrainerAgain(size_t rank, bool stays) {
    if (rank == 0 && !plan_.trainer_point.empty())
      report_.points_hit.push_back(plan_.trainer_point);
    StartTrainer(rank, "", stays);
  }

  void KillServer() {
    server_->Signal(SIGKILL);
    server_->Wait(kRoundLimitNs);
    server_point_.clear();
    kill_soon_ = false;
  }

  uint64_t NormsPrinted() const {
    uint64_t printed = 0;
    for (size_t rank = 0; rank < trainers_.size(); ++rank)
      printed += Count(old_output_[rank] + trainers_[rank]->Output(), "norm ");
    return printed;
  }

  // Mostly after some steps since the kill before, so that the job is there and on its way;
  // sometimes while others still come back.
  void Kill() {
    const uint64_t printed = NormsPrinted();
    if (printed < norms_at_kill_ + random_->Below(4) && random_->Below(10) != 0) return;
    norms_at_kill_ = printed;
    const Victim victim = plan_.victims[random_->Below(plan_.victims.size())];
    const size_t rank = random_->Below(trainers_.size());
    const bool of_keeper = victim == Victim::kKeeper || victim == Victim::kTrainerAndKeeper;
    if (of_keeper &&
        !KillKeeper(victim == Victim::kTrainerAndKeeper ? trainers_[rank].get() : nullptr))
      return;
    if (victim == Victim::kTrainer || victim == Victim::kTrainerAndServer)
      trainers_[rank]->Signal(SIGKILL);
    if (victim == Victim::kServer || victim == Victim::kTrainerAndServer) KillServer();
    ++report_.kills;
  }

  // With a trainer, or alone. Waits until another keeper holds everything: killing the server
  // before that is another promise.
  bool KillKeeper(ChildProcess* trainer) {
    const pid_t keeper = FindKeeper(directory_.path());
    const size_t before = Count(server_->Output(), "a new one holds");
    if (keeper == 0 || Count(server_->Output(), "\"ready\"") == 0) return false;
    if (trainer != nullptr) trainer->Signal(SIGKILL);
    kill(keeper, SIGKILL);
    const int64_t end = clock_.NowNs() + kWaitLimitNs;
    while (Count(server_->Output(), "a new one holds") == before) {
      if (clock_.NowNs() > end) Fail("memserver did not start another keeper");
      if (!good()) return false;
      clock_.SleepNs(kNsPerMs);
    }
    return true;
  }

  // That other promise: memserver and its keeper at once. Nothing is left; each rank hears it, and
  // the next server starts clean.
  void LoseStates() {
    uint64_t least = ~uint64_t{0};  // steps that each rank has done in this life
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      least = std::min(
          least, must_be_told_[rank] ? 0 : uint64_t{Count(trainers_[rank]->Output(), "norm ")});
    }
    const pid_t keeper = FindKeeper(directory_.path());
    if (keeper == 0 || least < lose_at_) return;
    lose_at_ = 1 + random_->Below(plan_.shape.steps - 1);
    // The keeper first; a server that still runs would start another one.
    if (random_->Below(2) == 0) {
      server_->Signal(SIGSTOP);
      kill(keeper, SIGKILL);
    }
    KillServer();
    kill(keeper, SIGKILL);
    ++report_.losses;
    must_be_told_.assign(trainers_.size(), true);
  }

  // All ranks have done their steps, and stay.
  void Finish() {
    HandOver();
    if (good()) ReadPlanes();
    if (good()) LetRanksLeave();
    if (good()) ExpectNothingHeld();
    if (good()) EndServer();
    for (size_t rank = 0; rank < trainers_.size(); ++rank) TakeNorms(rank);
  }

  // SIGTERM; a server that meets its point instead is followed by the next, which is told as well.
  void HandOver() {
    for (;;) {
      StartServerAgain();
      if (!good()) return;
      const bool ready = server_->WaitForOutput("\"ready\"", kWaitLimitNs);
      if (ready && server_point_.starts_with("keeper.") &&
          Count(server_->Output(), "a new one holds") > 0)
        report_.points_hit.push_back(std::exchange(server_point_, ""));
      if (ready) server_->Signal(SIGTERM);
      const auto ended = server_->Wait(kWaitLimitNs);
      if (ended && ended->exit_code == 0) return;
      if (!ended || ended->signal != SIGKILL || server_point_.empty())
        return Fail("memserver did not hand over in order");
    }
  }

  void ReadPlanes() {
    auto states = ReadKeptStates(directory_.path(), kJob);
    if (!states.ok()) return Fail(states.status().Format());
    states_ = std::move(states).value();
    // The point that the last server did not meet may lie where ranks leave.
    StartServerAt(std::exchange(server_point_, ""));
  }

  void LetRanksLeave() {
    for (auto& trainer : trainers_) trainer->Signal(SIGUSR1);
    const int64_t begin = clock_.NowNs();
    const int64_t kill_at = begin + static_cast<int64_t>(random_->Below(120)) * kNsPerMs;
    bool kill = plan_.kill_while_leaving;
    for (size_t gone = 0; gone < trainers_.size() && good(); clock_.SleepNs(kNsPerMs)) {
      if (clock_.NowNs() > begin + kWaitLimitNs) Fail("a rank that was done did not leave");
      StartServerAgain();
      if (kill && clock_.NowNs() > kill_at) KillServer();
      kill = kill && clock_.NowNs() <= kill_at;
      gone = 0;
      for (size_t rank = 0; rank < trainers_.size(); ++rank) {
        const auto ended = trainers_[rank]->Wait(0);
        if (!ended) continue;
        gone += ended->exit_code == 0 ? 1 : 0;
        if (ended->signal == SIGKILL) StartTrainerAgain(rank, false);
        if (ended->exit_code > 0)
          Fail("rank " + std::to_string(rank) + " could not leave: exit code " +
               std::to_string(ended->exit_code));
      }
    }
  }

  // A server may meet its last point when the ranks have gone.
  void ExpectNothingHeld() {
    const int64_t end = clock_.NowNs() + kWaitLimitNs;
    while (WaitForHoldings(directory_.path(), kNothing, 100 * kNsPerMs) != kNothing) {
      if (clock_.NowNs() > end) return Fail("something is held after the end");
      StartServerAgain();
    }
    const OpenDescriptors left = WaitForDescriptors(directory_.path(), at_rest_, kWaitLimitNs);
    if (left != at_rest_)
      Fail("other descriptors are open after the end:\n" + left.Text() + "\nthan before:\n" +
           at_rest_.Text());
  }

  void EndServer() {
    server_->Signal(SIGTERM);
    const auto ended = server_->Wait(kWaitLimitNs);
    if (!ended || ended->exit_code != 0) return Fail("memserver did not end in order");
    const int64_t end = clock_.NowNs() + kWaitLimitNs;
    while (FindKeeper(directory_.path()) != 0 && clock_.NowNs() < end) clock_.SleepNs(kNsPerMs);
    if (FindKeeper(directory_.path()) != 0) return Fail("the keeper did not end");
    if (!std::filesystem::is_empty(directory_.path()))
      Fail("files are left in the socket directory");
  }

  const RoundPlan& plan_;
  SplitMix64* const random_;
  const OpenDescriptors& at_rest_;
  SteadyClock clock_;
  const TemporaryDirectory directory_, saves_;
  std::unique_ptr<ChildProcess> server_;
  std::vector<std::unique_ptr<ChildProcess>> trainers_;  // by rank
  std::string server_output_;                            // of servers that ended
  std::vector<std::string> old_output_;                  // of trainers that ended
  size_t points_taken_ = 0;
  std::string server_point_;  // of the server that runs
  bool kill_soon_ = false;
  uint64_t norms_at_kill_ = 0, lose_at_ = 1 + random_->Below(10);
  std::vector<bool> must_be_told_;  // by rank: that its states are lost
  std::vector<std::map<uint64_t, std::string>> norms_;
  std::vector<std::string> hashes_;
  KeptStates states_;
  RoundReport report_;
};

Campaign::Campaign() {
  const TemporaryDirectory directory;
  ChildProcess server(ServerCommand(directory.path(), {}));
  TP_CHECK(WaitForHoldings(directory.path(), kNothing, kWaitLimitNs) == kNothing,
           server.Output().c_str());
  at_rest_ = SettledDescriptorsOf(directory.path());
  KillDaemon(directory.path());
}

const Campaign::Outcome& Campaign::Undisturbed(const Shape& shape) {
  std::unique_ptr<Outcome>& outcome = undisturbed_[shape];
  if (outcome) return *outcome;
  RoundPlan plan;
  plan.shape = shape;
  Round round(plan, this);
  const RoundReport report = round.Play();
  TP_CHECK(report.wrong.empty(), report.wrong.c_str());
  outcome = std::make_unique<Outcome>(round.TakeOutcome());
  TP_CHECK(outcome->states.version == shape.steps, "the undisturbed run does all its steps");
  return *outcome;
}

RoundReport Campaign::Run(const RoundPlan& plan) {
  const Outcome& expected = Undisturbed(plan.shape);
  Round round(plan, this);
  RoundReport report = round.Play();
  if (!report.wrong.empty()) return report;
  const Outcome outcome = round.TakeOutcome();
  if (outcome.states.version != expected.states.version)
    report.wrong = "another version is sealed at the end";
  if (outcome.states.bytes != expected.states.bytes)
    report.wrong = "the planes differ from those of the undisturbed run";
  if (outcome.hashes != expected.hashes) report.wrong = "the ranks read other weights at the end";
  for (size_t rank = 0; rank < outcome.norms.size(); ++rank) {
    for (const auto& [step, norm] : outcome.norms[rank]) {
      if (expected.norms[rank].at(step) != norm)
        report.wrong = "step " + std::to_string(step) + " had another gradient norm";
    }
  }
  return report;
}

Shape Campaign::RandomShape(bool large) {
  Shape shape;
  shape.world = static_cast<uint32_t>(1 + random_.Below(large ? 2 : 3));
  shape.micro_batches = static_cast<uint32_t>(1 + random_.Below(2));
  shape.bf16 = !large && random_.Below(2) == 1;
  shape.large = large;
  if (large) shape.steps = 12;
  return shape;
}

}  // namespace tidepool::testing
