// trainer_campaign: the real trainer (a small GPT, two ranks) and its memserver are killed again
// and again, and in the end the saved weights and the losses of all steps have the bits of the run
// that nobody disturbed.
//
//   trainer_campaign --kills 34 --seed 1
// Ranks are killed at random times and at named points; memserver at random times (its keeper
// starts it again, and where the keeper waits for long between two tries, the campaign does) and,
// where the campaign started it, at named points; the keeper at random times; a rank and memserver,
// or a rank and the keeper, together. With --stages one rank goes through so many stages, or two
// with --stage-ranks 2, and the run that nobody disturbs through none. With --experts two ranks
// share the experts of one block, of another block's some have no tokens in most steps, and each
// point of a rank is hit, with more kills than --kills where that takes more. The last kills fall
// into the end of the run. When the job has been left, memserver and keeper must hold and have open
// what they did before it came. Prints every kill with its step; exit code 1 at the first
// difference, with the seed that repeats the order.
#include <signal.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "shm/socket_path.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/flag_reader.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/resume/campaign_daemon.h"
#include "trainer/launch/done_marks.h"

namespace tidepool::testing {
namespace {

constexpr uint32_t kWorldMax = 2;
// Each rank, which comes back armed with a point in the end of the run.
constexpr uint32_t kLastKillsOfARank = 2;
// Points at which ranks may die without a step between: the other rank gives up at five.
constexpr uint32_t kPointsOfAStep = 3;
constexpr int64_t kRunLimitNs = 240 * kNsPerSecond;
constexpr int64_t kLimitPerKillNs = 20 * kNsPerSecond;
constexpr int64_t kReleaseNs = 10 * kNsPerSecond;
constexpr const char* kJob = "campaign";

// Points in the life of a rank, and at which passing it may die there.
struct RankPoint {
  const char* name;
  uint32_t passings;
};
constexpr RankPoint kRankPoints[] = {
    {"client.connected", 1},     {"client.hello_sent", 1},     {"client.spec_sent", 1},
    {"client.attached", 1},      {"client.server_lost", 1},    {"client.resume_sent", 1},
    {"client.resumed", 1},       {"client.resubmitted", 1},    {"client.schedule_sent", 1},
    {"client.fetch_sent", 60},   {"client.outcome_taken", 90}, {"client.gradient_sent", 30},
    {"trainer.forward_done", 4}, {"trainer.backward_done", 4}, {"client.end_step_sent", 4},
    {"trainer.step_sealed", 4}};

// Points that a rank passes only where memserver was lost.
bool IsOfALoss(const std::string& point) {
  return point.starts_with("client.server_lost") || point.starts_with("client.resume") ||
         point.starts_with("client.resubmitted");
}

constexpr std::string_view kLastPoints[] = {"client.save_sent", "trainer.run_done",
                                            "client.goodbye_sent", "trainer.detached"};

// What a run leaves: its weights file, and step and losses from each line of metrics.jsonl.
struct Traces {
  std::string weights;
  std::vector<std::string> losses;
};

Traces TracesIn(const std::string& directory) {
  Traces traces{ReadText(directory + "/weights/model.safetensors"), {}};
  std::istringstream lines(ReadText(directory + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    traces.losses.push_back(line.substr(0, line.find(",\"grad_norm\"")));
  return traces;
}

// One training run: its ranks, and whatever is started again.
class Run {
 public:
  struct Plan {
    std::string name;
    uint32_t kills = 0;
    uint64_t steps = 0;
    uint32_t world = kWorldMax;
    std::string preset = "tiny";
    std::vector<std::string> flags = {};  // beside those of all runs
    bool each_point = false;              // of the ranks is to be hit
  };

  Run(const Plan& plan, const std::string& out, const std::string& data, Daemon* daemon,
      SplitMix64* random)
      : plan_(plan), out_(out), data_(data), daemon_(daemon), random_(random) {
    auto marks = trainer::DoneMarks::Make(plan.world);
    marks_.emplace(std::move(marks).value());
    ranks_.resize(plan.world);
    wanted_ = plan.kills;
    if (!plan.each_point) return;
    for (const RankPoint& point : kRankPoints) to_hit_.push_back(&point);
    wanted_ += static_cast<uint32_t>(2 * to_hit_.size());
  }

  Wrong Play() {
    const int64_t limit_ns = clock_.NowNs() + kRunLimitNs + wanted_ * kLimitPerKillNs;
    for (uint32_t rank = 0; rank < plan_.world; ++rank) StartRank(rank);
    while (wrong_.empty() && !AllDone()) {
      if (clock_.NowNs() > limit_ns) Fail("the run does not end");
      step_ = StepNow();
      PollDaemon();
      for (uint32_t rank = 0; rank < plan_.world; ++rank) PollRank(rank);
      if (kills_ < wanted_ && step_ >= next_kill_) Kill();
      clock_.SleepNs(2 * kNsPerMs);
    }
    if (wrong_.empty() && !to_hit_.empty())
      wrong_ = std::string("no rank came to ") + to_hit_.front()->name;
    return wrong_;
  }
  uint32_t kills() const { return kills_; }

 private:
  struct Rank {
    std::unique_ptr<ChildProcess> process;
    uint64_t born_at = 0;  // the step that was reported last
    std::string point;     // where it will kill itself; empty: nowhere
    bool killed = false;   // by the campaign, counted already
    bool done = false;
  };

  void Fail(const std::string& what) {
    std::string text = what + "\n--- memserver and its keepers:\n" + LastOf(daemon_->Output());
    for (uint32_t rank = 0; rank < plan_.world; ++rank) {
      const std::string output = ranks_[rank].process ? ranks_[rank].process->Output() : "";
      text += "\n--- rank " + std::to_string(rank) + ":\n" + LastOf(output);
    }
    wrong_ = text;
  }
  static std::string LastOf(const std::string& output) {
    return output.substr(output.size() - std::min<size_t>(output.size(), 3000));
  }
  bool AllDone() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.done; });
  }
  void Count(const std::string& what) {
    ++kills_;
    const double seconds = static_cast<double>(clock_.NowNs() - begin_ns_) / kNsPerSecond;
    std::printf("  %6.2f s  step %3llu  kill %2u: %s\n", seconds,
                static_cast<unsigned long long>(step_), kills_, what.c_str());
  }

  // The last step that was reported.
  uint64_t StepNow() const {
    const std::string text = ReadText(out_ + "/metrics.jsonl");
    const size_t line = text.rfind("{\"step\":");
    return line == std::string::npos ? 0 : std::stoull("0" + text.substr(line + 8, 8));
  }

  uint32_t LastKills() const { return kLastKillsOfARank * plan_.world; }
  bool IsStaged() const {
    return std::find(plan_.flags.begin(), plan_.flags.end(), "--pipeline") != plan_.flags.end();
  }

  // Where a rank will kill itself; nowhere until a step was done since the last such point, because
  // repeated deaths without one would make the other rank give up.
  std::string PointFor(uint32_t rank) {
    if (kills_ >= wanted_) return "";
    if (leading_)
      return std::string(kLastPoints[rank + random_->Below(std::size(kLastPoints) - rank)]) + ":1";
    if (!to_hit_.empty()) return NextToHit();
    if (step_ <= step_of_point_ || random_->Below(3) == 0) return "";
    step_of_point_ = step_;
    const RankPoint& point = kRankPoints[random_->Below(std::size(kRankPoints))];
    std::string name = point.name;
    if (name.ends_with("ward_done") && IsStaged()) name.insert(name.find('.') + 1, "stage_");
    return name + ":" + std::to_string(1 + random_->Below(point.passings));
  }

  // The next point that nobody has hit, if no other rank is armed.
  std::string NextToHit() {
    if (step_ > step_of_point_) points_of_step_ = 0;
    if (step_ == 0 || IsArmed() || points_of_step_ == kPointsOfAStep) return "";
    step_of_point_ = step_;
    ++points_of_step_;
    const RankPoint& point = *to_hit_.front();
    const bool once = IsOfALoss(point.name) || point.passings == 1;
    return std::string(point.name) + ":" +
           std::to_string(once ? 1 : 1 + random_->Below(point.passings));
  }

  bool IsArmed() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return !rank.point.empty() && !rank.killed; });
  }

  void NoteHit(const std::string& point) {
    if (to_hit_.empty() || !point.starts_with(std::string(to_hit_.front()->name) + ":")) return;
    to_hit_.erase(to_hit_.begin());
    // As many as each point took, or more.
    if (to_hit_.empty()) wanted_ = std::max(plan_.kills, kills_ + LastKills());
  }

  void StartRank(uint32_t rank) {
    Rank& made = ranks_[rank];
    made.point = PointFor(rank);
    made.killed = false;
    made.born_at = step_;
    std::vector<std::string> environment{"RANK=" + std::to_string(rank),
                                         "LOCAL_RANK=" + std::to_string(rank),
                                         "WORLD_SIZE=" + std::to_string(plan_.world),
                                         "LOCAL_WORLD_SIZE=" + std::to_string(plan_.world),
                                         "TIDEPOOL_LAUNCH_ID=" + plan_.name,
                                         "TIDEPOOL_LAUNCH_DONE=" + marks_->path()};
    if (!made.point.empty()) environment.push_back("TIDEPOOL_KILL_AT=" + made.point);
    std::vector<std::string> words{TIDEPOOL_TRAINER, "run",
                                   "--preset",       plan_.preset,
                                   "--context",      "32",
                                   "--batch",        "4",
                                   "--rcache",       "50%",
                                   "--steps",        std::to_string(plan_.steps),
                                   "--threads",      "1",
                                   "--eval-every",   "25",
                                   "--eval-batches", "1",
                                   "--job",          kJob,
                                   "--resume",       "auto",
                                   "--data",         data_,
                                   "--socket-dir",   daemon_->socket_dir(),
                                   "--out",          out_,
                                   "--save",         out_ + "/weights"};
    words.insert(words.end(), plan_.flags.begin(), plan_.flags.end());
    made.process = std::make_unique<ChildProcess>(words, environment);
  }

  void PollRank(uint32_t rank) {
    Rank& polled = ranks_[rank];
    if (polled.done) return;
    const auto ended = polled.process->Wait(0);
    if (!ended) return;
    const std::string output = polled.process->Output();
    if (polled.born_at > 0 && output.find("holds no weights") != std::string::npos)
      return Fail("the job was lost, and begun anew");
    if (ended->exit_code == 0) {
      polled.done = true;
      return;
    }
    if (ended->signal != SIGKILL) {
      return Fail("rank " + std::to_string(rank) + " ended by itself: " +
                  (ended->signal != 0 ? "signal " + std::to_string(ended->signal)
                                      : "exit code " + std::to_string(ended->exit_code)));
    }
    if (!polled.killed) {
      Count("rank " + std::to_string(rank) + " at " + polled.point);
      NoteHit(std::exchange(polled.point, ""));
    }
    // As the launcher does it.
    if (marks_->IsSet(rank)) {
      polled.done = true;
    } else {
      StartRank(rank);
    }
  }

  void PollDaemon() {
    const std::string point = daemon_->point();
    if (daemon_->Poll(kills_ + LastKills() < wanted_)) Count("memserver at " + point);
  }

  void KillRank(uint32_t rank) {
    if (ranks_[rank].done || ranks_[rank].killed || ranks_[rank].process->Wait(0)) return;
    ranks_[rank].process->Signal(SIGKILL);
    ranks_[rank].killed = true;
    Count("rank " + std::to_string(rank));
  }

  void KillServer() {
    if (!daemon_->Lives()) return;
    daemon_->Kill();
    Count("memserver");
  }
  void KillKeeper() {
    if (!daemon_->MayLoseKeeper()) return;
    Count("keeper");
    if (const Wrong wrong = daemon_->KillKeeper(); !wrong.empty()) Fail(wrong);
  }

  // Half of the kills hit memserver or keeper alone, which cost little time; both ranks come back
  // together.
  void Kill() {
    if (leading_) return;
    if (kills_ + LastKills() >= wanted_ && to_hit_.empty()) return LeadToTheEnd();
    next_kill_ = step_ + 1 + random_->Below(3);
    if (!to_hit_.empty()) return KillForPoint();
    const auto rank = static_cast<uint32_t>(random_->Below(plan_.world));
    switch (random_->Below(8)) {
      case 0: return KillRank(rank);
      case 1: KillRank(rank); return plan_.world > 1 ? KillRank(1 - rank) : KillKeeper();
      case 2: KillRank(rank); return KillServer();
      case 3: KillRank(rank); return KillKeeper();
      case 4:
      case 5: return KillKeeper();
      default: return KillServer();
    }
  }

  // Leads a rank to the next point: kills memserver where it waits for that, else a rank, which
  // comes back armed. A rank on its way to a point is left alone.
  void KillForPoint() {
    for (const Rank& rank : ranks_) {
      if (rank.point.empty() || rank.killed) continue;
      if (IsOfALoss(rank.point)) KillServer();
      return;
    }
    KillRank(static_cast<uint32_t>(random_->Below(plan_.world)));
  }

  // Brings both ranks back with a point of the end armed, whatever they were armed with before.
  void LeadToTheEnd() {
    for (Rank& rank : ranks_) {
      if (rank.killed || rank.process->Wait(0)) return;  // it must still be started again
    }
    leading_ = true;
    for (uint32_t rank = 0; rank < plan_.world; ++rank) KillRank(rank);
  }

  const Plan plan_;
  const std::string out_, data_;
  Daemon* daemon_;
  SplitMix64* random_;
  SteadyClock clock_;
  const int64_t begin_ns_ = clock_.NowNs();
  std::optional<trainer::DoneMarks> marks_;
  std::vector<Rank> ranks_;
  std::vector<const RankPoint*> to_hit_;  // in this order
  uint32_t kills_ = 0, wanted_ = 0;       // wanted_: in all
  uint64_t step_ = 0, next_kill_ = 2, step_of_point_ = 0;
  uint32_t points_of_step_ = 0;
  bool leading_ = false;  // to the end
  std::string wrong_;
};

class Campaign {
 public:
  // `stages`: of the run that is killed, which `ranks` compute in `columns`; 0: it has two ranks
  // and no stages.
  struct Form {
    uint32_t stages = 0, ranks = 1, columns = 1;
    bool experts = false;  // two ranks share some
  };
  Campaign(uint32_t kills, uint64_t seed, const Form& form)
      : kills_(kills),
        stages_(form.stages),
        ranks_(form.ranks),
        columns_(form.columns),
        experts_(form.experts),
        random_(seed),
        daemon_(&random_) {
    SplitMix64 words(5);
    std::ofstream text(Data());
    for (int i = 0; i < 60000; ++i)
      text.put(words.Below(6) == 0 ? ' ' : static_cast<char>('a' + words.Below(12)));
    std::ofstream(Experts()) << "layers=0, experts=4, ep=2\n"
                                "layers=1, experts=32, top-k=1, width=16, residual=yes\n";
  }

  Wrong Play() {
    if (!daemon_.IsReady()) return "memserver did not become ready";
    at_rest_ = SettledDescriptorsOf(daemon_.socket_dir());
    // Kills follow each other by one to three steps, and points are passed up to four steps later.
    const uint64_t kills = kills_ + (experts_ ? std::size(kRankPoints) : 0);
    const uint64_t steps = 4 * kills + 20;
    if (const Wrong wrong = Train(PlanOf("alone", 0, steps)); !wrong.empty()) return wrong;
    if (const Wrong wrong = Train(PlanOf("killed", kills_, steps)); !wrong.empty()) return wrong;
    if (const Wrong wrong = Compare(steps); !wrong.empty()) return wrong;
    if (const Wrong wrong = LeaveInOrder(steps); !wrong.empty()) return wrong;
    return daemon_.Stop();
  }
  uint32_t kills() const { return done_; }

 private:
  std::string Data() const { return scratch_.path() + "/words.txt"; }
  std::string Experts() const { return scratch_.path() + "/experts.txt"; }

  Run::Plan PlanOf(const std::string& name, uint32_t kills, uint64_t steps) const {
    Run::Plan plan{.name = name, .kills = kills, .steps = steps};
    if (experts_) {
      plan.preset = "llama-tiny";
      plan.flags = {"--moe", Experts()};
      plan.each_point = kills > 0;
      return plan;
    }
    if (stages_ == 0) return plan;
    // Columns have bits of their own, which an undisturbed run with as many has too.
    const bool whole = name == "alone" && columns_ == 1;
    plan.world = whole ? 1 : ranks_;
    plan.flags = {"--dtype", "bf16", "--accumulate", "3"};
    if (!whole) plan.flags.insert(plan.flags.end(), {"--pipeline", std::to_string(stages_)});
    if (columns_ > 1) plan.flags.insert(plan.flags.end(), {"--columns", std::to_string(columns_)});
    return plan;
  }

  Wrong Train(const Run::Plan& plan) {
    Run run(plan, scratch_.path() + "/" + plan.name, Data(), &daemon_, &random_);
    Wrong wrong = run.Play();
    done_ += run.kills();
    if (!wrong.empty()) return wrong;
    if (run.kills() < plan.kills)
      return "the run ended after " + std::to_string(run.kills()) + " kills";
    return plan.kills == 0 ? ExpectReleased() : "";
  }

  // A rank that died behind its mark has left the job to its lease, for ranks that come back: lets
  // them come back and say goodbye.
  Wrong LeaveInOrder(uint64_t steps) {
    while (daemon_.Poll(false), !daemon_.Lives() || HoldingsOf(daemon_.socket_dir()).jobs < 0)
      SteadyClock().SleepNs(5 * kNsPerMs);
    if (HoldingsOf(daemon_.socket_dir()).jobs == 0) return ExpectReleased();
    return Train(PlanOf("killed", 0, steps));
  }

  Wrong ExpectReleased() const {
    const Holdings held = WaitForHoldings(daemon_.socket_dir(), kNothing, kReleaseNs);
    if (held != kNothing) {
      return "after the run memserver holds " + std::to_string(held.jobs) + " jobs, " +
             std::to_string(held.sessions) + " sessions, " + std::to_string(held.pool_bytes) +
             " and " + std::to_string(held.rcache_bytes) + " bytes";
    }
    const OpenDescriptors left = WaitForDescriptors(daemon_.socket_dir(), at_rest_, kReleaseNs);
    if (left == at_rest_) return "";
    return "after the run other descriptors are open:\n" + left.Text() + "\nthan before:\n" +
           at_rest_.Text();
  }

  Wrong Compare(uint64_t steps) const {
    const Traces should = TracesIn(scratch_.path() + "/alone"),
                 is = TracesIn(scratch_.path() + "/killed");
    if (should.weights.size() < 400'000 || should.losses.size() != steps + 1)
      return "the undisturbed run is not whole";
    if (is.weights != should.weights) return "the weights differ";
    if (is.losses.size() != should.losses.size())
      return "losses of " + std::to_string(is.losses.size()) + " steps";
    for (size_t i = 0; i < is.losses.size(); ++i) {
      if (is.losses[i] != should.losses[i])
        return "the losses differ: " + is.losses[i] + " instead of " + should.losses[i];
    }
    return "";
  }

  const uint32_t kills_, stages_, ranks_, columns_;
  const bool experts_;
  SplitMix64 random_;
  TemporaryDirectory scratch_;
  Daemon daemon_;
  OpenDescriptors at_rest_;
  uint32_t done_ = 0;
};

int Main(int argc, char** argv) {
  uint64_t seed = 1, kills = 34;
  uint32_t per_run = 50;
  Campaign::Form form;
  FlagReader flags(
      "kills trainers and memserver of a small GPT's training, and compares weights and losses");
  flags.Add("--seed", &seed);
  flags.Add("--kills", &kills, "in all", uint64_t{12}, uint64_t{1'000'000});
  flags.Add("--per-run", &per_run, "kills of one training run", 12u, 1'000u);
  flags.Add("--stages", &form.stages, "of a pipeline, in place of two ranks without one", 0u, 2u);
  flags.Add("--stage-ranks", &form.ranks, "that compute the stages", 1u, 2u);
  flags.Add("--columns", &form.columns, "of these ranks; each trains other sequences", 1u, 2u);
  flags.Switch("--experts", &form.experts, "two ranks share some of a model's experts");
  if (const auto code = flags.Read(argc, argv)) return *code;
  SetLogLevel(LogLevel::kError);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  uint64_t done = 0;
  Wrong wrong;
  for (uint64_t run = seed; done < kills && wrong.empty(); ++run) {
    const auto now = static_cast<uint32_t>(std::clamp<uint64_t>(kills - done, 12, per_run));
    std::printf(
        "%s, %u kills (--seed %llu --kills %u --stages %u --stage-ranks %u --columns %u%s repeats "
        "their order)\n",
        form.stages > 0 && form.ranks == 1 ? "one rank" : "two ranks", now,
        static_cast<unsigned long long>(run), now, form.stages, form.ranks, form.columns,
        form.experts ? " --experts" : "");
    Campaign campaign(now, run, form);
    wrong = campaign.Play();
    done += campaign.kills();
  }
  if (!wrong.empty()) std::printf("FAILED: %s\n", wrong.c_str());
  std::printf("%s: %llu kills, %.1f s\n",
              wrong.empty() ? "weights and losses equal, bit for bit" : "FAILED",
              static_cast<unsigned long long>(done),
              static_cast<double>(clock.NowNs() - begin) / kNsPerSecond);
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tidepool::testing

int main(int argc, char** argv) {
  return tidepool::testing::Main(argc, argv);
}
