// `trainer run --durable-steps` by the real programs: all of them are killed between checkpoints,
// and the run goes on behind its last logged step with the bits of the run that nobody disturbed;
// also where the process that logs, the trainer or memserver dies at any point of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/step_log.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace step_log_run_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class StepLogRun : public TrainerRuns {
 protected:
  std::string Checkpoints() const { return Out("checkpoints"); }
  std::string Log() const { return Out("log"); }
  // A run with a server of its own.
  static Flags Alone(Flags more = {}) {
    more.insert({{"--standalone", ""}, {"--job", "j"}});
    return more;
  }
  // The same, with one checkpoint at its beginning, and a log of all steps behind it.
  Flags Logging(Flags more = {}) const {
    more.insert({{"--checkpoint-every", "1000"},
                 {"--checkpoint-dir", Checkpoints()},
                 {"--durable-steps", Log()}});
    return Alone(more);
  }
  void RunToTheEnd(const std::string& name, const Flags& flags) const {
    const auto trainer = Start(Words(name, flags));
    ExpectDone(trainer.get());
  }
  // Kills a run when it has reported so many steps, and its checkpoint is whole.
  void KillAt(uint64_t lines, const std::string& name, const std::vector<std::string>& words) {
    const auto killed = Start(words);
    ASSERT_TRUE(WaitForLines(name, lines, killed.get())) << killed->Output();
    SteadyClock clock;
    while (!OneIsWhole()) clock.SleepNs(kNsPerMs);
    killed->Signal(SIGKILL);
    ASSERT_TRUE(killed->Wait(kRunNs));
  }
  bool OneIsWhole() const {
    auto found = FindCheckpoints(Checkpoints());
    // A writer that was ended may have left an old one half removed.
    return found.ok() && std::any_of(found->begin(), found->end(),
                                     [](const auto& checkpoint) { return checkpoint.state.ok(); });
  }
  // The step to which a run says that it has made logged steps again; 0: none.
  static uint64_t ReplayedTo(const std::string& output) {
    const std::string text = "logged steps made again, to step ";
    const size_t at = output.find(text);
    return at == std::string::npos ? 0 : std::strtoull(&output[at + text.size()], nullptr, 10);
  }
  void Clean() const {
    fs::remove_all(Checkpoints());
    fs::remove_all(Log());
  }
  static std::vector<std::string> OnRanks(uint32_t ranks, const std::vector<std::string>& run) {
    std::vector<std::string> words{"launch", "-n", std::to_string(ranks), "--"};
    words.insert(words.end(), run.begin(), run.end());
    return words;
  }
};

TEST_F(StepLogRun, AllProcessesAreKilledAndNoLoggedStepIsLost) {
  RunToTheEnd("whole", Alone());
  KillAt(8, "killed", Words("killed", Logging()));
  // This one dies while it makes the steps again.
  const auto again = Start(Words("killed", Logging({{"--resume", "latest"}})),
                           {"TIDEPOOL_KILL_AT=client.gradient_sent:7"});
  ASSERT_EQ(again->Wait(kRunNs)->signal, SIGKILL);

  // Its steps follow the first run's, without a checkpoint between them.
  KillAt(20, "killed", Words("killed", Logging({{"--resume", "auto"}})));
  const auto last = Start(Words("killed", Logging({{"--resume", "latest"}})));
  ExpectDone(last.get());
  EXPECT_THAT(last->Output(), HasSubstr("resume    behind step 1 of "));
  EXPECT_GE(ReplayedTo(last->Output()), 17U) << last->Output();
  ExpectSame("killed", "whole");
}

TEST_F(StepLogRun, EveryFormOfGradientsGoesOnWithTheSameBits) {
  const std::vector<Flags> forms{
      {{"--dtype", "bf16"}, {"--accumulate", "2"}, {"--states", "split-8bit"}},
      {{"--dtype", "fp16"}},
      {{"--optimizer", "sgd"}, {"--clip", "0.1"}, {"--chunk-size", "64KiB"}}};
  for (Flags form : forms) {
    Clean();
    form["--steps"] = "12";
    RunToTheEnd("whole", Alone(form));
    KillAt(8, "killed", Words("killed", Logging(form)));
    form["--resume"] = "latest";
    const auto last = Start(Words("killed", Logging(form)));
    ExpectDone(last.get());
    EXPECT_GE(ReplayedTo(last->Output()), 5U) << last->Output();
    EXPECT_TRUE(Weights("killed") == Weights("whole")) << form.begin()->second;
    fs::remove_all(Out("killed"));
  }
}

TEST_F(StepLogRun, LoggedOnTwoRanksItGoesOnOnTwoOrOne) {
  Flags flags{{"--steps", "12"}};
  const auto whole = Start(OnRanks(2, Words("whole", Alone(flags))));
  ExpectDone(whole.get());
  KillAt(8, "killed", OnRanks(2, Words("killed", Logging(flags))));
  fs::copy(Out("log"), Out("log-of-two"), fs::copy_options::recursive);
  flags["--resume"] = "latest";
  const auto two = Start(OnRanks(2, Words("killed", Logging(flags))));
  ExpectDone(two.get());
  EXPECT_GE(ReplayedTo(two->Output()), 5U) << two->Output();
  EXPECT_TRUE(Weights("killed") == Weights("whole"));

  flags["--durable-steps"] = Out("log-of-two");
  const auto one = Start(Words("one", Logging(flags)));
  ExpectDone(one.get());
  EXPECT_GE(ReplayedTo(one->Output()), 5U) << one->Output();
}

// The lines of a run that say that a power cut leaves their step: the last such step.
uint64_t LastDurable(const std::string& metrics) {
  std::ifstream file(metrics);
  uint64_t last = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"durable\":true") == std::string::npos) continue;
    last = std::strtoull(&line[line.find("\"step\":") + 7], nullptr, 10);
  }
  return last;
}

// With --sync-steps every step behind a whole checkpoint is reported as durable, and is.
TEST_F(StepLogRun, WhatIsReportedDurableIsMadeAgain) {
  KillAt(8, "first", Words("first", Logging({{"--sync-steps", ""}})));
  const auto again = Start(Words("killed", Logging({{"--sync-steps", ""}, {"--resume", "latest"}})),
                           {"TIDEPOOL_KILL_AT=trainer.step_sealed:5"});
  ASSERT_EQ(again->Wait(kRunNs)->signal, SIGKILL);
  const uint64_t from = ReplayedTo(again->Output());
  ASSERT_GE(from, 5U) << again->Output();
  EXPECT_EQ(LastDurable(Out("killed") + "/metrics.jsonl"), from + 4) << again->Output();
  const auto last = Start(Words("last", Logging({{"--resume", "latest"}, {"--steps", "30"}})));
  ExpectDone(last.get());
  EXPECT_GE(ReplayedTo(last->Output()), from + 4) << last->Output();
  EXPECT_EQ(LastDurable(Out("last") + "/metrics.jsonl"), 30U) << "the last step is waited for";
}

// Points that a log passes, of the process that writes it, the trainer and memserver.
constexpr const char* kPoints[] = {"writer.log_begun",          "writer.gradients_logged",
                                   "writer.step_logged",        "writer.log_synced",
                                   "writer.log_trimmed",        "writer.safe_told",
                                   "client.steps_sent",         "server.steps_begun",
                                   "server.gradients_streamed", "server.step_streamed"};

// At each point; the second one meets what recovered from the first.
constexpr int kKills = 2;

std::vector<std::string> PointsOf(const std::string& place) {
  std::vector<std::string> points;
  for (const char* point : kPoints) {
    if (std::string(point).starts_with(place)) points.emplace_back(point);
  }
  return points;
}

// The log ends with it, loudly; each further checkpoint begins one that dies as well.
TEST_F(StepLogRun, AWriterThatIsKilledCostsItsLogAlone) {
  const Flags steps{{"--steps", "12"}};
  RunToTheEnd("whole", Alone(steps));
  for (const std::string& point : PointsOf("writer.")) {
    Clean();
    const bool trims = point == "writer.log_trimmed";
    Flags flags = Logging(steps);
    flags["--checkpoint-every"] = "2";
    const auto trainer = Start(Words("killed", flags), {"TIDEPOOL_KILL_AT=" + point});
    ExpectDone(trainer.get());
    if (!trims) {
      EXPECT_THAT(trainer->Output(), HasSubstr("not logged")) << point;
    }
    EXPECT_TRUE(Weights("killed") == Weights("whole")) << point;
    EXPECT_TRUE(OneIsWhole()) << point << "\n" << trainer->Output();
    EXPECT_THAT(trainer->Output(), Not(HasSubstr("a checkpoint was not written"))) << point;
    fs::remove_all(Out("killed"));
  }
  // What they left is in nobody's way.
  RunToTheEnd("killed", Logging({{"--resume", "latest"}, {"--steps", "14"}}));
}

TEST_F(StepLogRun, ATrainerThatIsKilledGoesOn) {
  const Flags steps{{"--steps", "4"}, {"--resume", "auto"}};
  RunToTheEnd("whole", Alone({{"--steps", "4"}}));
  for (const std::string& point : PointsOf("client.")) {
    for (int round = 0; round < kKills; ++round) {
      const auto trainer = Start(Words("killed", Logging(steps)), {"TIDEPOOL_KILL_AT=" + point});
      ASSERT_EQ(trainer->Wait(kRunNs)->signal, SIGKILL);
    }
  }
  RunToTheEnd("killed", Logging(steps));
  EXPECT_TRUE(Weights("killed") == Weights("whole"));
}

TEST_F(StepLogRun, AServerThatIsKilledCostsNoBit) {
  RunToTheEnd("whole", Alone({{"--steps", "12"}}));
  for (const std::string& point : PointsOf("server.")) {
    Clean();
    const TemporaryDirectory sockets;
    const auto serve = [&](const std::vector<std::string>& environment) {
      auto server = std::make_unique<ChildProcess>(
          MemserverCommand(sockets.path(),
                           {"--keeper", "process", "--lease", "60s", "--no-respawn"}),
          environment);
      EXPECT_TRUE(server->WaitForOutput("\"message\":\"ready\"", kRunNs)) << server->Output();
      return server;
    };
    Flags flags =
        Logging({{"--socket-dir", sockets.path()}, {"--checkpoint-every", "6"}, {"--steps", "12"}});
    flags.erase("--standalone");
    const std::vector<std::string> armed{"TIDEPOOL_KILL_AT=" + point};
    auto server = serve(armed);
    const auto trainer = Start(Words("killed", flags));
    for (int kills = 0; kills < kKills; ++kills) {
      const auto end = server->Wait(kRunNs);
      ASSERT_TRUE(end) << point << "\n" << trainer->Output();
      ASSERT_EQ(end->signal, SIGKILL) << server->Output();
      server = serve(kills + 1 < kKills ? armed : std::vector<std::string>{});
    }
    ExpectDone(trainer.get());
    // Which one depends on whether the server died before or behind its answer.
    EXPECT_THAT(trainer->Output(), AnyOf(HasSubstr("a checkpoint begins another"),
                                         HasSubstr("steps are not logged; checkpoints")))
        << point;
    EXPECT_TRUE(Weights("killed") == Weights("whole")) << point;
    fs::remove_all(Out("killed"));
    server.reset();
    KillDaemon(sockets.path());
  }
}

// A folder that cannot be had, as on a drive that is gone.
TEST_F(StepLogRun, AFailingDriveLeavesCheckpointsAlone) {
  std::ofstream(Out("file")) << "no folder";
  const auto trainer = Start(Words("run", Logging({{"--durable-steps", Out("file") + "/log"},
                                                   {"--checkpoint-every", "4"},
                                                   {"--steps", "8"}})));
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("steps are not logged any more"));
  EXPECT_THAT(trainer->Output(), HasSubstr("the log of steps cannot be written"));
  EXPECT_TRUE(OneIsWhole());
}

}  // namespace step_log_run_test
}  // namespace tidepool::testing
