#include "tests/process/campaign.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "tests/process/daemon_fixture.h"
#include "tests/process/memserver_process.h"

namespace tidepool::testing {
namespace {

constexpr int64_t kRoundLimitNs = 60 * kNsPerSecond;
constexpr int64_t kWaitLimitNs = 30 * kNsPerSecond;  // for one process to do one thing
const char* const kJob = "campaign";

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

// One run of the job, from nothing to nothing.
class Campaign::Round {
 public:
  Round(const RoundPlan& plan, SplitMix64* random) : plan_(plan), random_(random), norms_(plan.shape.world), hashes_(plan.shape.world) {
    trainers_.resize(plan.shape.world);
    old_output_.resize(plan.shape.world);
  }

  ~Round() { KillDaemon(directory_.path()); }

  RoundReport Play() {
    const int64_t end = clock_.NowNs() + kRoundLimitNs;
    StartServer();
    for (Rank rank = 0; rank < plan_.shape.world; ++rank) StartTrainer(rank, rank == 0 ? plan_.trainer_point : "");
    while (!AllDone() && report_.wrong.empty()) {
      if (clock_.NowNs() > end) Fail("the job did not come to its end in time");
      clock_.SleepNs(static_cast<int64_t>(500'000 + random_->Below(8'000'000)));
      StartAgainWhatEnded();
      if (report_.kills < plan_.kills) Kill();
    }
    if (report_.wrong.empty()) Finish();
    report_.recoveries = static_cast<uint32_t>(Count(server_output_ + server_->Output(), "job found in kept memory"));
    return report_;
  }

  Outcome TakeOutcome() { return {std::move(states_), std::move(norms_), std::move(hashes_)}; }

 private:
  void Fail(const std::string& what) {
    std::ostringstream text;
    text << what << "\n--- memserver:\n" << server_output_ << (server_ ? server_->Output() : "");
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      text << "\n--- rank " << rank << ":\n" << old_output_[rank] << (trainers_[rank] ? trainers_[rank]->Output() : "");
    }
    report_.wrong = text.str();
  }

  static std::vector<std::string> Armed(const std::string& point) {
    return point.empty() ? std::vector<std::string>() : std::vector<std::string>{"TIDEPOOL_KILL_AT=" + point};
  }

  void StartServer() {
    if (server_) server_output_ += server_->Output();
    const bool planned = server_starts_ < plan_.server_points.size();
    server_point_ = planned ? plan_.server_points[server_starts_] : "";
    ++server_starts_;
    kill_soon_ = planned && server_point_.empty();
    // Each server has tiles of another size than the one before.
    const char* const tile = std::array{"256,512", "1024,2048", "512,1024"}[server_starts_ % 3];
    server_ = std::make_unique<ChildProcess>(
        MemserverCommand(directory_.path(), {"--keeper", "process", "--no-respawn", "--lease", "30s", "--pool", "8MiB", "--tile", tile}),
        Armed(server_point_));
  }

  void StartTrainer(size_t rank, const std::string& point) {
    if (trainers_[rank]) {
      TakeNorms(rank);
      old_output_[rank] += trainers_[rank]->Output();
    }
    std::vector<std::string> options{"--name", kJob, "--persistent", "--norms", "--server-timeout-ms", "30000"};
    const auto add = [&options](const char* flag, uint64_t value) { options.insert(options.end(), {flag, std::to_string(value)}); };
    add("--world", plan_.shape.world);
    add("--rank", rank);
    add("--steps", plan_.shape.steps);
    add("--micro-batches", plan_.shape.micro_batches);
    add("--elements", 4800);  // a multiple of 16 x ranks for up to 3 ranks
    add("--pause-ms", static_cast<uint64_t>(plan_.pause_ms));
    if (plan_.shape.bf16) options.push_back("--bf16");
    options.insert(options.end(), {"--optimizer", NameOf(plan_.shape.rule()), "--states", NameOf(plan_.shape.states())});
    if (!plan_.detach) options.push_back("--stay");
    if (rank == 0) options.insert(options.end(), {"--save", saves_.path()});
    trainers_[rank] = std::make_unique<ChildProcess>(ThinCommand(directory_.path(), options), Armed(point));
  }

  // Norms that a rank printed: a step that was sealed has one norm, whoever prints it and how often.
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
        if (!is_new && found->second != norm) Fail("two norms of step " + std::to_string(step) + ": " + norm + " and " + found->second);
      }
    }
  }

  bool IsDone(size_t rank) const { return Count(trainers_[rank]->Output(), "hash ") > 0; }
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
    if (ended->signal == SIGKILL && !server_point_.empty()) report_.points_hit.push_back(server_point_);
    if (ended->signal != SIGKILL) Fail("memserver ended by itself, with exit code " + std::to_string(ended->exit_code));
    StartServer();
    return true;
  }

  void StartAgainWhatEnded() {
    if (!StartServerAgain() && kill_soon_ && NormsPrinted() > random_->Below(30)) KillServer();
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      const auto ended = trainers_[rank]->Wait(0);
      if (!ended || (ended->exit_code == 0 && IsDone(rank))) continue;
      if (ended->signal != SIGKILL)
        return Fail("rank " + std::to_string(rank) + " ended with exit code " + std::to_string(ended->exit_code));
      if (rank == 0 && !plan_.trainer_point.empty()) report_.points_hit.push_back(plan_.trainer_point);
      StartTrainer(rank, "");
    }
  }

  void KillServer() {
    server_->Signal(SIGKILL);
    server_->Wait(kRoundLimitNs);
    server_point_.clear();
    kill_soon_ = false;
  }

  uint64_t NormsPrinted() const {
    uint64_t printed = 0;
    for (size_t rank = 0; rank < trainers_.size(); ++rank) printed += Count(old_output_[rank] + trainers_[rank]->Output(), "norm ");
    return printed;
  }

  // Mostly after some steps since the kill before, so that the job is there and on its way; sometimes while others still come back.
  void Kill() {
    const uint64_t printed = NormsPrinted();
    if (printed < norms_at_kill_ + random_->Below(4) && random_->Below(10) != 0) return;
    norms_at_kill_ = printed;
    const Victim victim = plan_.victims[random_->Below(plan_.victims.size())];
    const size_t rank = random_->Below(trainers_.size());
    if (victim == Victim::kKeeper && !KillKeeper()) return;
    if (victim == Victim::kTrainer || victim == Victim::kTrainerAndServer) trainers_[rank]->Signal(SIGKILL);
    if (victim == Victim::kServer || victim == Victim::kTrainerAndServer) KillServer();
    ++report_.kills;
  }

  // Waits until another keeper holds everything: killing the server before that is another promise.
  bool KillKeeper() {
    const pid_t keeper = FindKeeper(directory_.path());
    const size_t before = Count(server_->Output(), "a new one holds");
    if (keeper == 0 || Count(server_->Output(), "\"ready\"") == 0) return false;
    kill(keeper, SIGKILL);
    const int64_t end = clock_.NowNs() + kWaitLimitNs;
    while (Count(server_->Output(), "a new one holds") == before) {
      if (clock_.NowNs() > end) Fail("memserver did not start another keeper");
      if (!report_.wrong.empty()) return false;
      clock_.SleepNs(kNsPerMs);
    }
    return true;
  }

  // A server may meet its last point when the ranks have gone.
  bool NothingIsHeld() {
    const int64_t end = clock_.NowNs() + kWaitLimitNs;
    while (WaitForHoldings(directory_.path(), kNothing, 100 * kNsPerMs) != kNothing) {
      if (clock_.NowNs() > end) return false;
      StartServerAgain();
    }
    return true;
  }

  void Finish() {
    for (size_t rank = 0; rank < trainers_.size(); ++rank) TakeNorms(rank);
    StartServerAgain();
    if (!server_->WaitForOutput("\"ready\"", kWaitLimitNs)) return Fail("the last memserver did not become ready");
    if (server_point_.starts_with("keeper.") && Count(server_->Output(), "a new one holds") > 0)
      report_.points_hit.push_back(server_point_);
    if (plan_.detach) {
      for (auto& trainer : trainers_) {
        if (!trainer->Wait(kWaitLimitNs)) return Fail("a rank that was done did not end");
      }
      if (!NothingIsHeld()) return Fail("something is held after the end");
    }
    server_->Signal(SIGTERM);
    const auto ended = server_->Wait(kWaitLimitNs);
    if (!ended || ended->exit_code != 0) return Fail("memserver did not end in order");
    if (!plan_.detach) {
      auto states = TakeKeptStates(directory_.path(), kJob);
      if (!states.ok()) return Fail(states.status().Format());
      states_ = std::move(states).value();
    }
    for (auto& trainer : trainers_) trainer->Signal(SIGKILL);
    const int64_t end = clock_.NowNs() + kWaitLimitNs;
    while (FindKeeper(directory_.path()) != 0 && clock_.NowNs() < end) clock_.SleepNs(kNsPerMs);
    if (FindKeeper(directory_.path()) != 0) return Fail("the keeper did not end");
    if (!std::filesystem::is_empty(directory_.path())) Fail("files are left in the socket directory");
  }

  const RoundPlan& plan_;
  SplitMix64* const random_;
  SteadyClock clock_;
  const TemporaryDirectory directory_, saves_;
  std::unique_ptr<ChildProcess> server_;
  std::vector<std::unique_ptr<ChildProcess>> trainers_;  // by rank
  std::string server_output_;                            // of servers that ended
  std::vector<std::string> old_output_;                  // of trainers that ended
  size_t server_starts_ = 0;
  std::string server_point_;  // of the server that runs
  bool kill_soon_ = false;
  uint64_t norms_at_kill_ = 0;
  std::vector<std::map<uint64_t, std::string>> norms_;
  std::vector<std::string> hashes_;
  KeptStates states_;
  RoundReport report_;
};

const Campaign::Outcome& Campaign::Undisturbed(const Shape& shape) {
  std::unique_ptr<Outcome>& outcome = undisturbed_[shape];
  if (outcome) return *outcome;
  RoundPlan plan;
  plan.shape = shape;
  Round round(plan, &random_);
  const RoundReport report = round.Play();
  TP_CHECK(report.wrong.empty(), report.wrong.c_str());
  outcome = std::make_unique<Outcome>(round.TakeOutcome());
  TP_CHECK(outcome->states.version == shape.steps, "the undisturbed run does all its steps");
  return *outcome;
}

RoundReport Campaign::Run(const RoundPlan& plan) {
  const Outcome& expected = Undisturbed(plan.shape);
  Round round(plan, &random_);
  RoundReport report = round.Play();
  if (!report.wrong.empty()) return report;
  const Outcome outcome = round.TakeOutcome();
  if (!plan.detach && outcome.states.version != expected.states.version) report.wrong = "another version is sealed at the end";
  if (!plan.detach && outcome.states.bytes != expected.states.bytes) report.wrong = "the planes differ from those of the undisturbed run";
  if (outcome.hashes != expected.hashes) report.wrong = "the ranks read other weights at the end";
  for (size_t rank = 0; rank < outcome.norms.size(); ++rank) {
    for (const auto& [step, norm] : outcome.norms[rank]) {
      if (expected.norms[rank].at(step) != norm) report.wrong = "step " + std::to_string(step) + " had another gradient norm";
    }
  }
  return report;
}

Shape Campaign::RandomShape() {
  Shape shape;
  shape.world = static_cast<uint32_t>(1 + random_.Below(3));
  shape.micro_batches = static_cast<uint32_t>(1 + random_.Below(2));
  shape.bf16 = random_.Below(2) == 1;
  return shape;
}

}  // namespace tidepool::testing
