// A run that is interrupted at any step and continued with --resume auto ends with the bits of the
// run that nobody disturbed.
//
// Server and ranks are threads of this process. A rank "dies" by being destroyed without a goodbye:
// its slot and its collectives close as those of a dead process do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/units.h"
#include "memserver/server.h"
#include "trainer/run/training_run.h"

namespace tidepool::trainer {
namespace continue_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSteps = 9;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// What a run left behind: its weights file, and of each line of metrics.jsonl the part that does
// not tell of time and traffic.
struct Traces {
  std::string weights;
  std::vector<std::string> series;
};

Traces TracesIn(const std::string& directory) {
  Traces traces{ReadText(directory + "/weights/model.safetensors"), {}};
  std::istringstream lines(ReadText(directory + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    traces.series.push_back(line.substr(0, line.find(",\"tokens\"")));
  return traces;
}

class ContinueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    std::string name = ::testing::TempDir() + "/tidepool-continue-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    WriteData();
    memserver::ServerOptions options;
    options.settings.socket_dir = directory_;
    options.pool_bytes = 16 * kMiB;
    options.rcache_limit = 16 * kMiB;
    options.settings.times.lease_ns = 60 * kNsPerSecond;
    auto server = memserver::Server::Start(options, &nobody_, &clock_);
    ASSERT_TRUE(server.ok()) << server.status().Format();
    server_ = std::move(server).value();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void WriteData() {
    SplitMix64 random(11);
    std::ofstream text(directory_ + "/words.txt");
    for (int word = 0; word < 20000; ++word) {
      for (uint64_t n = 2 + random.Below(5); n > 0; --n)
        text.put(static_cast<char>('a' + random.Below(12)));
      text.put(' ');
    }
  }

  // A run of kSteps steps whose learning rate, batches and held-out losses change with the step.
  RunSetup Setup(const std::string& out) const {
    RunSetup setup;
    setup.clock = &clock_;
    RunOptions& run = setup.options;
    run.model.preset = "tiny";
    run.data.path = directory_ + "/words.txt";
    run.data.context = 16;
    run.data.batch = 4;
    run.training.steps = kSteps;
    run.training.warmup_steps = 4;
    run.training.learning_rate = 3e-3f;
    run.optimizer.clip = 0.5f;
    run.training.eval_every = 3;
    run.training.eval_batches = 1;
    run.memory.rcache = "50%";
    run.device.threads = 1;
    run.job.name = "j";
    run.job.resume = "auto";
    run.server.socket_dir = directory_;
    run.output.out_dir = directory_ + "/" + out;
    run.output.save_dir = run.output.out_dir + "/weights";
    run.output.quiet = true;
    return setup;
  }

  static Status Run(RunSetup setup) { return TrainingRun(std::move(setup)).All(); }
  // As Run, but the process "dies" once `version` is sealed and reported.
  static void RunUntil(Version version, RunSetup setup) {
    setup.after_step = [version](Version sealed) {
      return sealed == version ? Status(ErrorId::kStepAbandoned, "dead") : Status();
    };
    EXPECT_EQ(Run(std::move(setup)).id(), ErrorId::kStepAbandoned);
  }
  static void ExpectDone(const Status& ended) { EXPECT_TRUE(ended.ok()) << ended.Format(); }

  Traces TracesOf(const std::string& out) const { return TracesIn(directory_ + "/" + out); }
  void ExpectSame(const std::string& out, const std::string& reference) const {
    const Traces is = TracesOf(out), should = TracesOf(reference);
    EXPECT_FALSE(should.weights.empty());
    EXPECT_EQ(should.series.size(), kSteps + 1);
    EXPECT_TRUE(is.weights == should.weights) << out << ": the weights differ";
    EXPECT_EQ(is.series, should.series) << out;
  }

  // As if the write of the last line had been cut off after 7 bytes.
  void CutLastReport(const std::string& out) const {
    const std::string path = directory_ + "/" + out + "/metrics.jsonl";
    std::string text = ReadText(path);
    text.resize(text.rfind('\n', text.size() - 2) + 1 + 7);
    std::ofstream(path, std::ios::binary) << text;
  }
  // The step `recovered` was reported by another process than the one that sealed it, which alone
  // knew the norm.
  void ExpectSameButNorm(const std::string& out, const std::string& reference,
                         size_t recovered) const {
    const Traces is = TracesOf(out), should = TracesOf(reference);
    EXPECT_FALSE(should.weights.empty());
    EXPECT_TRUE(is.weights == should.weights);
    ASSERT_EQ(is.series.size(), should.series.size());
    const auto without_norm = [](const std::string& line) {
      const size_t at = line.find(",\"grad_norm\"");
      return line.substr(0, at) + line.substr(line.find(',', at + 1));
    };
    EXPECT_THAT(is.series[recovered], HasSubstr("\"grad_norm\":null"));
    for (size_t i = 0; i < is.series.size(); ++i)
      EXPECT_EQ(without_norm(is.series[i]), without_norm(should.series[i]));
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/" + out + "/metrics.noted"));
  }

  // A number of metrics.jsonl, by line that has it.
  std::vector<uint64_t> NumbersOf(const std::string& out, const std::string& key) const {
    const std::string wanted = "\"" + key + "\":";
    std::vector<uint64_t> numbers;
    std::istringstream lines(ReadText(directory_ + "/" + out + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find(wanted);
      if (at != std::string::npos) numbers.push_back(std::stoull(line.substr(at + wanted.size())));
    }
    return numbers;
  }

  std::string directory_;
  mutable SteadyClock clock_;
  memserver::KeptHolder nobody_{memserver::KeeperChoice::kNone, {}};
  std::unique_ptr<memserver::Server> server_;
};

TEST_F(ContinueTest, AfterAnyStep) {
  ExpectDone(Run(Setup("undisturbed")));
  for (const Version died_at : {Version{1}, Version{3}, Version{4}, kSteps}) {
    SCOPED_TRACE(died_at);
    const std::string out = "died-at-" + std::to_string(died_at);
    RunUntil(died_at, Setup(out));
    ExpectDone(Run(Setup(out)));
    ExpectSame(out, "undisturbed");
  }
}

TEST_F(ContinueTest, AfterSeveralDeathsAndWithAccumulation) {
  const auto setup = [this](const std::string& out) {
    RunSetup made = Setup(out);
    made.options.training.micro_batches = 2;
    return made;
  };
  ExpectDone(Run(setup("undisturbed")));
  for (const Version died_at : {Version{2}, Version{5}, Version{6}})
    RunUntil(died_at, setup("died"));
  ExpectDone(Run(setup("died")));
  ExpectSame("died", "undisturbed");
}

// The scale falls in the first steps, which are skipped, and grows again; verdict and count of the
// last sealed step must come back too.
TEST_F(ContinueTest, WithLossScalingAndSkippedSteps) {
  const auto setup = [this](const std::string& out) {
    RunSetup made = Setup(out);
    made.options.model.dtype = "fp16";
    made.scaler.initial_scale = 16777216;
    made.scaler.backoff_factor = 1.0 / 16;
    made.scaler.growth_interval = 2;
    return made;
  };
  ExpectDone(Run(setup("undisturbed")));
  ASSERT_THAT(TracesOf("undisturbed").series[1], HasSubstr("\"skipped\":true"));
  ASSERT_THAT(TracesOf("undisturbed").series[9], HasSubstr("\"skipped\":false"));
  for (const Version died_at : {Version{1}, Version{2}, Version{4}, Version{7}}) {
    SCOPED_TRACE(died_at);
    const std::string out = "died-at-" + std::to_string(died_at);
    RunUntil(died_at, setup(out));
    ExpectDone(Run(setup(out)));
    ExpectSame(out, "undisturbed");
  }
}

// The order of a profiled run is known before its first step, also of one that is resumed: each
// eviction is a plan's. A run without a profile evicts at random in its first step, so that the
// counter can tell.
TEST_F(ContinueTest, NoStepOfAProfiledRunEvictsAtRandom) {
  const auto setup = [this](const std::string& out) {
    RunSetup made = Setup(out);
    made.options.memory.rcache = "30%";
    made.options.training.eval_every = 0;
    return made;
  };
  RunUntil(3, setup("foreseen"));
  ExpectDone(Run(setup("foreseen")));
  EXPECT_EQ(NumbersOf("foreseen", "evictions_unforeseen"), std::vector<uint64_t>(kSteps, 0));
  for (const uint64_t evictions : NumbersOf("foreseen", "evictions")) EXPECT_GT(evictions, 0u);

  RunSetup unknown = setup("unknown");
  unknown.foresees = false;
  unknown.options.training.steps = 2;
  ExpectDone(Run(unknown));
  const std::vector<uint64_t> random = NumbersOf("unknown", "evictions_unforeseen");
  ASSERT_EQ(random.size(), 2u);
  EXPECT_GT(random[0], 0u);
  EXPECT_EQ(random[1], 0u) << "the second step follows what the first one recorded";
}

// The report of the last sealed step was never written: what was noted before the seal takes its
// place.
TEST_F(ContinueTest, AStepThatWasSealedAndNotReportedIsReported) {
  ExpectDone(Run(Setup("undisturbed")));
  RunUntil(6, Setup("died"));
  CutLastReport("died");
  ExpectDone(Run(Setup("died")));
  ExpectSameButNorm("died", "undisturbed", 6);
}

// What cannot happen to a run whose passes are alike (a fetch is left behind by its step and by a
// restart of the server) is no end of it. Versions that others have left behind, and answers that
// never come because another rank stands still.
TEST_F(ContinueTest, WhatAnotherRankCausesEndsTheAttemptOnly) {
  ExpectDone(Run(Setup("undisturbed")));
  for (const ErrorId id : {ErrorId::kVersionGone, ErrorId::kWaitTimeout}) {
    const std::string out = id == ErrorId::kVersionGone ? "left-behind" : "unanswered";
    SCOPED_TRACE(out);
    RunSetup setup = Setup(out);
    uint32_t times = 0;
    setup.after_step = [&times, id](Version sealed) {
      return sealed == 4 && times++ == 0 ? Status(id, "a fetch came too late, or was not answered")
                                         : Status();
    };
    ExpectDone(Run(setup));
    EXPECT_EQ(times, 1U);
    ExpectSame(out, "undisturbed");
  }
}

TEST_F(ContinueTest, NeverRefusesAJobThatIsHeld) {
  RunUntil(2, Setup("died"));
  RunSetup setup = Setup("other");
  setup.options.job.resume = "never";
  const Status refused = Run(setup);
  EXPECT_EQ(refused.id(), ErrorId::kJobMismatch) << refused.Format();
  EXPECT_THAT(refused.Format(), HasSubstr("--resume auto"));
  setup.options.job.name = "k";
  ExpectDone(Run(setup));
  ExpectDone(Run(Setup("died")));  // it was still held
  EXPECT_THAT(TracesOf("died").series.back(), HasSubstr("{\"step\":9,"));
}

TEST_F(ContinueTest, ARateThatNoStepCanTakeIsRefusedAndTheNameIsFree) {
  for (const char* resume : {"never", "auto"}) {
    SCOPED_TRACE(resume);
    RunSetup setup = Setup(resume);
    setup.options.job.resume = resume;
    setup.options.training.learning_rate = -1;
    const Status refused = Run(setup);
    EXPECT_EQ(refused.id(), ErrorId::kConfigBadValue) << refused.Format();
    EXPECT_EQ(refused.exit_code(), kExitUsage);
    EXPECT_THAT(refused.Format(), HasSubstr("--lr"));
    EXPECT_THAT(refused.Format(), Not(HasSubstr("report this")));
    setup.options.job.resume = "never";
    setup.options.training.learning_rate = 1e-3F;
    ExpectDone(Run(setup));
  }
}

TEST_F(ContinueTest, OtherFlagsDoNotContinueTheJob) {
  RunUntil(2, Setup("died"));
  RunSetup setup = Setup("died");
  setup.options.optimizer.clip = 0.25f;
  EXPECT_EQ(Run(setup).id(), ErrorId::kJobMismatch);
  RunSetup tiled = Setup("died");
  tiled.options.model.tile_linear = "8KiB";  // other parameters, in other chunks
  EXPECT_EQ(Run(tiled).id(), ErrorId::kJobMismatch);
}

// --- data and their order ---

class ChangedRunTest : public ContinueTest {
 protected:
  // A run that begins anew with `change` after two steps is refused, says `said`, and leaves the
  // job to the one without.
  void ExpectRefused(const std::string& said, const std::function<void(RunOptions*)>& change) {
    SCOPED_TRACE(said);
    RunSetup setup = Setup("died");
    change(&setup.options);
    const Status refused = Run(setup);
    EXPECT_EQ(refused.id(), ErrorId::kJobMismatch) << refused.Format();
    EXPECT_EQ(refused.exit_code(), kExitRefused);
    EXPECT_THAT(refused.Format(), HasSubstr(said));
  }
};

TEST_F(ChangedRunTest, AnotherOrderIsRefusedAndTheFormerOneGoesOn) {
  ExpectDone(Run(Setup("undisturbed")));
  RunUntil(2, Setup("died"));
  ExpectRefused("--batch 4, now 8", [](RunOptions* o) { o->data.batch = 8; });
  ExpectRefused("--context 16, now 32", [](RunOptions* o) { o->data.context = 32; });
  ExpectRefused("--seed 1, now 2", [](RunOptions* o) { o->model.seed = 2; });
  ExpectDone(Run(Setup("died")));
  ExpectSame("died", "undisturbed");
}

TEST_F(ChangedRunTest, DataThatChangedAreRefusedUntilTheyAreBack) {
  ExpectDone(Run(Setup("undisturbed")));
  RunUntil(2, Setup("died"));
  const std::string path = directory_ + "/words.txt", before = ReadText(path);
  std::ofstream(path, std::ios::binary) << before + "more";
  ExpectRefused("tokens to train on", [](RunOptions*) {});
  std::ofstream(path, std::ios::binary) << before;
  ExpectDone(Run(Setup("died")));
  ExpectSame("died", "undisturbed");
}

TEST_F(ChangedRunTest, OutputsInsideTheDataFolderChangeNothing) {
  const std::string data = directory_ + "/texts";
  std::filesystem::create_directories(data);
  const std::string words = ReadText(directory_ + "/words.txt");
  std::ofstream(data + "/a.txt") << words.substr(0, 20000);
  std::ofstream(data + "/b.txt") << words.substr(20000);
  const auto setup = [&](const std::string& out) {
    RunSetup made = Setup("texts/" + out);
    made.options.data.path = data;
    return made;
  };
  ExpectDone(Run(setup("undisturbed")));
  const Traces undisturbed = TracesOf("texts/undisturbed");
  std::filesystem::remove_all(data + "/undisturbed");
  RunUntil(2, setup("died"));
  RunUntil(5, setup("died"));
  ExpectDone(Run(setup("died")));
  EXPECT_TRUE(TracesOf("texts/died").weights == undisturbed.weights);
  EXPECT_EQ(TracesOf("texts/died").series, undisturbed.series);
}

TEST_F(ChangedRunTest, AnotherScheduleGoesOn) {
  RunUntil(2, Setup("died"));
  RunSetup setup = Setup("died");
  setup.options.training.learning_rate = 1e-3f;
  setup.options.output.quiet = false;
  ::testing::internal::CaptureStderr();
  ExpectDone(Run(setup));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("--lr 0.003 -> 0.001: goes on with the new one"));
}

// Two ranks as threads. `dies` dies once `version` is sealed and is started again at once; the
// other one stays and comes back by itself.
class TwoRanksTest : public ContinueTest {
 protected:
  RunSetup RankSetup(const std::string& out, uint32_t rank) const {
    RunSetup setup = Setup(out);
    setup.foresees = false;  // the other rank is a thread of this process
    setup.place.rank = setup.place.local_rank = rank;
    setup.place.world = setup.place.local_world = 2;
    setup.place.run_id = run_id_;
    return setup;
  }

  void Run2(const std::string& out, uint32_t dies, const std::vector<Version>& versions) {
    NewRun();
    std::thread other([&] { ExpectDone(Run(RankSetup(out, 1 - dies))); });
    for (const Version version : versions) RunUntil(version, RankSetup(out, dies));
    ExpectDone(Run(RankSetup(out, dies)));
    other.join();
  }
  // Ranks of the run before do not meet those of this one.
  void NewRun() { run_id_ = directory_ + "#" + std::to_string(++runs_); }
  std::string run_id_;
  int runs_ = 0;
};

TEST_F(TwoRanksTest, TheSurvivorWaitsForTheOneThatDied) {
  Run2("undisturbed", 1, {});
  Run2("rank-1-died", 1, {3, 5});
  ExpectSame("rank-1-died", "undisturbed");
}

TEST_F(TwoRanksTest, TheOneThatDiedHeldTheMeetingPoint) {
  Run2("undisturbed", 0, {});
  Run2("rank-0-died", 0, {3, 4});
  ExpectSame("rank-0-died", "undisturbed");
}

// The one that stayed finds its last barrier broken and ends alone; so does the other, which comes
// back when nobody may be there any more.
TEST_F(TwoRanksTest, BehindTheLastStepEachRankEndsAlone) {
  Run2("undisturbed", 0, {});
  Run2("rank-1-died", 1, {kSteps});
  ExpectSame("rank-1-died", "undisturbed");
}

// The report of the last step is still to be written, with its held-out loss: for that the ranks
// meet once more.
TEST_F(TwoRanksTest, TheLastReportIsWrittenByAllTogether) {
  Run2("undisturbed", 0, {});
  NewRun();
  std::thread dies([&] { RunUntil(kSteps, RankSetup("died", 1)); });
  RunUntil(kSteps, RankSetup("died", 0));
  dies.join();
  CutLastReport("died");
  std::thread other([&] { ExpectDone(Run(RankSetup("died", 1))); });
  ExpectDone(Run(RankSetup("died", 0)));
  other.join();
  ExpectSameButNorm("died", "undisturbed", kSteps);
  EXPECT_THAT(TracesOf("died").series.back(), HasSubstr("\"val_loss\""));
}

// A rank that waits for the others to write the last report is told by the report itself that it
// need not.
TEST_F(TwoRanksTest, TheLastReportNeedsNobodyOnceItIsWritten) {
  Run2("undisturbed", 0, {});
  NewRun();
  std::thread dies([&] { RunUntil(kSteps, RankSetup("died", 1)); });
  RunUntil(kSteps, RankSetup("died", 0));
  dies.join();
  std::thread waits([&] { ExpectDone(Run(RankSetup("died", 1))); });
  SteadyClock().SleepNs(200 * kNsPerMs);
  std::filesystem::remove(directory_ + "/died/metrics.noted");
  waits.join();
  ExpectDone(Run(RankSetup("died", 0)));
  ExpectSame("died", "undisturbed");
}

// Both ranks of a first start; `change` is made to the options of rank 1.
class UnlikeRanksTest : public TwoRanksTest {
 protected:
  std::array<Status, 2> RunBoth(const std::function<void(RunOptions*)>& change) {
    NewRun();
    const auto setup = [&](uint32_t rank) {
      RunSetup made = RankSetup("out", rank);
      made.options.job.rejoin_timeout = "2s";
      if (rank == 1) change(&made.options);
      return made;
    };
    std::array<Status, 2> ended;
    std::thread other([&] { ended[1] = Run(setup(1)); });
    ended[0] = Run(setup(0));
    other.join();
    return ended;
  }
};

// The server keeps the note of the rank that comes first; the other one is refused at its slot.
TEST_F(UnlikeRanksTest, OneWithOtherDataIsRefusedByName) {
  const std::string other = directory_ + "/others.txt";
  std::ofstream(other) << ReadText(directory_ + "/words.txt") << "more";
  const auto ended = RunBoth([&](RunOptions* o) { o->data.path = other; });
  const size_t refused = ended[0].id() == ErrorId::kJobMismatch ? 0 : 1;
  EXPECT_EQ(ended[refused].id(), ErrorId::kJobMismatch) << ended[refused].Format();
  EXPECT_FALSE(ended[1 - refused].ok());
  for (const std::string& part :
       {"rank " + std::to_string(refused) + " was started otherwise", std::string("to train on")})
    EXPECT_THAT(ended[refused].Format(), HasSubstr(part));
}

// A later run may change the rate, so the server has nothing against it; the ranks have.
TEST_F(UnlikeRanksTest, OneWithAnotherRateIsRefusedWhereTheRanksMeet) {
  const auto ended = RunBoth([](RunOptions* o) { o->training.learning_rate = 1e-3F; });
  for (const Status& status : ended) {
    EXPECT_EQ(status.id(), ErrorId::kJobMismatch) << status.Format();
    EXPECT_THAT(status.Format(), HasSubstr("rank 1"));
  }
  EXPECT_THAT(ended[1].Format(), HasSubstr("--lr 0.003 there, 0.001 here"));
}

TEST_F(TwoRanksTest, ARankThatDoesNotComeBackIsWaitedForSoLong) {
  NewRun();
  const auto setup = [this](uint32_t rank) {
    RunSetup made = RankSetup("out", rank);
    made.options.job.rejoin_timeout = "2s";
    return made;
  };
  std::thread dies([&] { RunUntil(3, setup(1)); });
  const Status ended = Run(setup(0));
  dies.join();
  EXPECT_EQ(ended.id(), ErrorId::kRanksMissing) << ended.Format();
  EXPECT_EQ(ended.exit_code(), kExitJobKept);
  for (const char* part :
       {"rank 1 did not come", "not within 2", "--job j --resume auto", "--rejoin-timeout"})
    EXPECT_THAT(ended.Format(), HasSubstr(part));
}

TEST_F(TwoRanksTest, WithoutResumeTheSurvivorEndsAndSaysHowToGoOn) {
  NewRun();
  const auto setup = [this](uint32_t rank) {
    RunSetup made = RankSetup("out", rank);
    made.options.job.resume = "never";
    return made;
  };
  std::thread dies([&] { RunUntil(3, setup(1)); });
  const Status ended = Run(setup(0));
  dies.join();
  EXPECT_TRUE(ended.id() == ErrorId::kPeerLost || ended.id() == ErrorId::kCollectiveFailed)
      << ended.Format();
  EXPECT_THAT(ended.Format(), HasSubstr("--job j --resume auto"));
}

}  // namespace continue_test
}  // namespace tidepool::trainer
