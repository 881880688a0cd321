// `trainer run` with nobody else on the machine: a private memserver comes and goes with the run,
// and a dry run starts nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error_catalog.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace private_server_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class PrivateServer : public TrainerRuns {
 protected:
  static constexpr size_t kGuardAndServer = 2;

  std::unique_ptr<ChildProcess> StartAlone(const std::string& name,
                                           const std::string& steps) const {
    return Start(Words(name, {{"--standalone", ""}, {"--steps", steps}, {"--eval-every", "1"}}),
                 {"TMPDIR=" + place_.path()});
  }
  // Waits until neither a process nor a file of the private memserver is left.
  void ExpectNothingSoon() const {
    SteadyClock clock;
    const int64_t end_ns = clock.NowNs() + kRunNs;
    while (!(ProcessesNaming(place_.path()).empty() && std::filesystem::is_empty(place_.path())) &&
           clock.NowNs() < end_ns)
      clock.SleepNs(kNsPerMs);
    ExpectNothing();
  }
  void ExpectNothing() const {
    EXPECT_THAT(ProcessesNaming(place_.path()), IsEmpty());
    EXPECT_TRUE(std::filesystem::is_empty(place_.path()))
        << std::filesystem::directory_iterator(place_.path())->path();
  }

  // Where private memservers have their directories, and nothing else is.
  const TemporaryDirectory place_;
};

TEST_F(PrivateServer, TrainsAndHasEndedWithTheRun) {
  const auto trainer = StartAlone("alone", "2");
  size_t most = 0;
  while (!trainer->Wait(0)) most = std::max(most, ProcessesNaming(place_.path()).size());
  ExpectNothing();
  EXPECT_GE(most, kGuardAndServer) << "this test looks in the wrong place";
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("step 2/2  loss "));
  EXPECT_THAT(trainer->Output(), HasSubstr("done      2 steps in "));
  const std::vector<std::string> losses = Losses("alone");
  ASSERT_EQ(losses.size(), 3U);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_THAT(losses[step], HasSubstr("\"step\":" + std::to_string(step) + ",\"loss\":"));
    EXPECT_THAT(losses[step], HasSubstr(",\"val_loss\":"));
  }
  const auto held_out = [&losses](size_t step) {
    return std::stod(losses[step].substr(losses[step].find("\"val_loss\":") + 11));
  };
  EXPECT_LT(held_out(2), held_out(0)) << "it did not learn";
  EXPECT_GT(Weights("alone").size(), 400'000U);
}

TEST_F(PrivateServer, AGradientThatIsNotFiniteEndsTheRunByName) {
  const auto trainer = Start(Words("infinite", {{"--standalone", ""},
                                                {"--optimizer", "sgd"},
                                                {"--clip", "0"},
                                                {"--lr", "1000"},
                                                {"--eval-every", "0"}}),
                             {"TMPDIR=" + place_.path()});
  const auto end = trainer->Wait(kRunNs);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, kExitNonFinite) << trainer->Output();
  EXPECT_THAT(trainer->Output(), HasSubstr("error[TP6001]: "));
  EXPECT_THAT(trainer->Output(), HasSubstr("with NonFinite"));
  EXPECT_THAT(trainer->Output(), HasSubstr("lower the learning rate"));
}

// One clock: memserver's updates lie in the lane of the update as this rank sees it, and each of
// its copies for this rank lies within the rank's own.
TEST_F(PrivateServer, TheTraceHasMemserversCopiesAndUpdatesOnTheSameClock) {
  const std::string file = Out("trace.json");
  const auto trainer = Start(Words("traced", {{"--standalone", ""},
                                              {"--steps", "4"},
                                              {"--eval-every", "0"},
                                              {"--rcache", "60%"},
                                              {"--trace", file}}),
                             {"TMPDIR=" + place_.path()});
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), Not(HasSubstr("without memserver's side")));

  struct Slice {
    double from, to;
  };
  std::map<std::string, std::vector<Slice>> updates, copies, fetches;  // by chunk
  std::map<int64_t, std::string> lanes;
  double sealed = -1, seen = -1;
  std::ifstream stream(file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const boost::json::value trace = boost::json::parse(text);
  for (const auto& event : trace.at("traceEvents").as_array()) {
    const bool server = event.at("pid").to_number<int64_t>() > 0;
    const auto lane = event.at("tid").to_number<int64_t>();
    const std::string name(event.at("name").as_string());
    if (server && name == "thread_name") lanes[lane] = event.at("args").at("name").as_string();
    if (event.at("ph").as_string() != "X") continue;
    const double from = event.at("ts").to_number<double>();
    const Slice slice{from, from + event.at("dur").to_number<double>()};
    if (!server && name.starts_with("update of step")) sealed = slice.from, seen = slice.to;
    if (!server && (lane % 100) == 2) fetches[name].push_back(slice);
    if (server && lanes[lane].starts_with("worker") && name.starts_with("update "))
      updates[name.substr(7, name.find(',') - 7)].push_back(slice);
    if (server && lanes[lane].starts_with("fetches of rank 0")) copies[name].push_back(slice);
  }

  // In microseconds. A rank notes a seal, a request or an answer when its thread runs, on a busy
  // machine some time later; two clocks would be seconds apart.
  constexpr double kSlack = 100'000;
  ASSERT_GE(sealed, 0);
  EXPECT_GT(updates.size(), 3u);
  EXPECT_GT(copies.size(), 3u);
  size_t begun = 0, within = 0;
  for (const auto& [chunk, slices] : updates) {
    ASSERT_FALSE(slices.empty());
    for (const Slice& slice : slices) {
      begun += slice.from >= sealed - kSlack && slice.from <= seen + kSlack ? 1 : 0;
    }
  }
  EXPECT_GE(begun, updates.size()) << "each chunk was updated between the seal and its fetch";
  for (const auto& [chunk, slices] : copies) {
    for (const Slice& copy : slices) {
      within += std::any_of(fetches[chunk].begin(), fetches[chunk].end(), [&](const Slice& fetch) {
        return fetch.from <= copy.from + kSlack && copy.to <= fetch.to + kSlack;
      });
    }
  }
  EXPECT_GE(within, copies.size());
}

// Each step, the first one too, moves what its plan says: without a plan there would be no theory.
TEST_F(PrivateServer, TheOrderOfTheFirstStepIsForeseen) {
  for (const char* const prefetch : {"", "--no-prefetch"}) {
    const std::string name = "foreseen" + std::string(prefetch);
    Flags flags{{"--standalone", ""}, {"--steps", "2"},      {"--eval-every", "0"},
                {"--rcache", "60%"},  {"--accumulate", "2"}, {"--checkpoint-activations", ""}};
    if (*prefetch != 0) flags[prefetch] = "";
    const auto trainer = Start(Words(name, flags), {"TMPDIR=" + place_.path()});
    ExpectDone(trainer.get());

    std::ifstream file(Out(name) + "/metrics.jsonl");
    size_t steps = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.find("\"step\":0,") != std::string::npos) continue;
      const auto number = [&line](const std::string& key) {
        const size_t at = line.find("\"" + key + "\":");
        return at == std::string::npos ? -1.0 : std::stod(line.substr(at + key.size() + 3));
      };
      EXPECT_GT(number("bytes_h2d"), 0) << line;
      EXPECT_EQ(number("bytes_h2d"), number("bytes_h2d_theory")) << line;
      EXPECT_EQ(number("bytes_d2h"), number("bytes_d2h_theory")) << line;
      ++steps;
    }
    EXPECT_EQ(steps, 2U);
  }
}

// Counted bytes are the plan's in every group and of every kind; weights have the same bits.
TEST_F(PrivateServer, EveryPlanMovesWhatItSaysAndTrainsTheSame) {
  std::string weights;
  for (const char* const plan : {"ddp", "zero2", "zero3", "auto"}) {
    SCOPED_TRACE(plan);
    const Flags flags{{"--standalone", ""}, {"--steps", "2"},
                      {"--job", "same"},    {"--eval-every", "0"},
                      {"--plan", plan},     {"--rcache", *plan == 'a' ? "60%" : "100%"}};
    std::vector<std::string> words = Words(plan, flags);
    words.insert(words.begin(), {"launch", "-n", "2", "--"});
    const auto trainer = Start(words, {"TMPDIR=" + place_.path()});
    ExpectDone(trainer.get());

    std::ifstream file(Out(plan) + "/metrics.jsonl");
    size_t steps = 0;
    for (std::string line; std::getline(file, line); ++steps) {
      const size_t counted = line.find("\"groups\":[{\"bytes\":"),
                   theory = line.find(",\"theory\":");
      ASSERT_TRUE(counted != std::string::npos && theory != std::string::npos) << line;
      const size_t begin = counted + 19, length = theory - begin;
      EXPECT_EQ(line.substr(begin, length), line.substr(theory + 10, length)) << line;
      const bool reduces = line.find("\"reduced\":0") == std::string::npos;
      EXPECT_EQ(reduces, plan == std::string("ddp")) << line;
    }
    EXPECT_EQ(steps, 2U);
    if (weights.empty()) weights = Weights(plan);
    EXPECT_TRUE(Weights(plan) == weights) << "the file has other bytes";
  }
}

// A killed trainer can clean up nothing itself.
TEST_F(PrivateServer, EndsHoweverTheRunEnds) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    const std::string name = "signal-" + std::to_string(signal);
    const auto trainer = StartAlone(name, "100000");
    ASSERT_TRUE(WaitForLines(name, 2, trainer.get())) << trainer->Output();
    EXPECT_GE(ProcessesNaming(place_.path()).size(), kGuardAndServer);
    trainer->Signal(signal);
    const auto end = trainer->Wait(kRunNs);
    ASSERT_TRUE(end) << trainer->Output();
    if (signal == SIGKILL) {
      ExpectNothingSoon();
    } else {
      ExpectNothing();
      EXPECT_EQ(end->exit_code, 128 + signal) << trainer->Output();
      EXPECT_THAT(trainer->Output(), HasSubstr("stopped by a signal; the last step is sealed"));
    }
  }
}

TEST_F(PrivateServer, TakesTheStatesWithItWhenItIsKilled) {
  const auto trainer = StartAlone("orphan", "100000");
  ASSERT_TRUE(WaitForLines("orphan", 2, trainer.get())) << trainer->Output();
  const std::string directory = std::filesystem::directory_iterator(place_.path())->path();
  const pid_t server = FindServer(directory);
  ASSERT_GT(server, 0) << directory;
  kill(server, SIGKILL);
  const auto end = trainer->Wait(kRunNs);
  ASSERT_TRUE(end) << trainer->Output();
  ExpectNothing();
  EXPECT_EQ(end->exit_code, kExitCorrupt) << "no job is kept for a run to continue:\n"
                                          << trainer->Output();
  EXPECT_THAT(trainer->Output(), HasSubstr("error[TP3014]"));
  EXPECT_THAT(trainer->Output(), HasSubstr("the private memserver has ended"));
  EXPECT_THAT(trainer->Output(), HasSubstr("rank attached")) << "the end of its log";
}

class DryRun : public PrivateServer {
 protected:
  // Checks, and no more: with a memserver of its own or one that is not there.
  std::string DryOutput(Flags more) const {
    more.insert({{"--dry-run", ""}});
    const auto trainer = Start(Words("dry", more), {"TMPDIR=" + place_.path()});
    ExpectDone(trainer.get());
    return trainer->Output();
  }
  static std::string Estimate(const std::vector<std::string>& more) {
    std::vector<std::string> words{"estimate", "--preset", "tiny",     "--context", "32",
                                   "--batch",  "4",        "--rcache", "50%"};
    words.insert(words.end(), more.begin(), more.end());
    const auto trainer = Start(words);
    ExpectDone(trainer.get());
    // What would fit, and whether this does, are matters of the moment.
    std::string output = trainer->Output();
    const bool is_json = output.starts_with("{");
    EXPECT_EQ(output.find("\nfits      this machine: yes: ") == std::string::npos, is_json)
        << output;
    if (!is_json) return output.substr(0, output.find("limits    "));

    const size_t limits = output.find(",\"limits\":{");
    EXPECT_NE(limits, std::string::npos) << output;
    return output.erase(limits, output.find('}', limits) + 1 - limits);
  }
};

// What the run would have been is said once it begins.
TEST_F(PrivateServer, AnErrorBeforeTheFirstStepStandsAlone) {
  const Flags nobody{{"--socket-dir", "/nowhere"}, {"--server-timeout", "0s"}};
  const Flags no_data{{"--standalone", ""}, {"--data", "/nowhere"}};
  for (const Flags& flags : {nobody, no_data}) {
    const auto trainer = Start(Words("bad", flags));
    const auto end = trainer->Wait(kRunNs);
    ASSERT_TRUE(end) << trainer->Output();
    EXPECT_NE(end->exit_code, 0);
    EXPECT_THAT(trainer->Output(), ::testing::StartsWith("\nerror["));
    EXPECT_THAT(trainer->Output(), Not(HasSubstr("tiny: ")));
  }
}

TEST_F(DryRun, ShowsThePlanAndStartsNothing) {
  for (const Flags& where :
       {Flags{{"--standalone", ""}},
        Flags{{"--socket-dir", "/nowhere"}, {"--job", "d"}, {"--resume", "auto"}}}) {
    const std::string output = DryOutput(where);
    EXPECT_THAT(output, HasSubstr(Estimate({}))) << "what `trainer estimate` says";
    for (const char* line : {"model     tiny: ", "\nrcache    ", "\nhost      ", "\ndata      ",
                             "\ndry run   nothing was started\n"})
      EXPECT_THAT(output, HasSubstr(line));
    EXPECT_THAT(output, Not(HasSubstr("server    ")));
    EXPECT_THAT(output, Not(HasSubstr("step ")));
    EXPECT_FALSE(std::filesystem::exists(Out("dry")))
        << "neither metrics nor weights have a place yet";
    ExpectNothing();
  }
}

TEST_F(DryRun, GivesThePlanAsJsonAlone) {
  const std::string plan = DryOutput({{"--standalone", ""}, {"--json", ""}, {"--quiet", ""}});
  EXPECT_EQ(plan, Estimate({"--json"}));
  EXPECT_THAT(plan, HasSubstr("\"preset\":\"tiny\""));
  ExpectNothing();
}

TEST_F(DryRun, FindsWhatTheRunWouldEndWith) {
  struct Bad {
    std::string flag, value;
    int exit_code;
  };
  for (const Bad& bad :
       {Bad{"--data", "/nowhere", kExitNotFound}, Bad{"--rcache", "1KiB", kExitDeviceMemory},
        Bad{"--server-timeout", "soon", kExitUsage}, Bad{"--pool", "lots", kExitUsage}}) {
    const auto trainer = Start(Words("bad", {{"--dry-run", ""}, {bad.flag, bad.value}}));
    const auto end = trainer->Wait(kRunNs);
    ASSERT_TRUE(end) << trainer->Output();
    EXPECT_EQ(end->exit_code, bad.exit_code) << trainer->Output();
    EXPECT_THAT(trainer->Output(), HasSubstr(bad.flag));
    EXPECT_THAT(trainer->Output(), Not(HasSubstr("dry run   ")));
  }
}

TEST_F(PrivateServer, ASampleThatIsInterruptedEndsItsLine) {
  ExpectDone(Start(Words("saved", {{"--standalone", ""}, {"--steps", "1"}})).get());
  const auto sample =
      Start({"sample", Out("saved") + "/weights", "Once upon", "--tokens", "1000000"});
  ASSERT_TRUE(sample->WaitForOutput("Once upon", kRunNs)) << sample->Output();
  sample->Signal(SIGINT);
  const auto end = sample->Wait(kRunNs);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 128 + SIGINT) << "signal " << end->signal;
  EXPECT_EQ(sample->Output().back(), '\n');
}

// The number behind `key` in a line of JSON; the last one where there are several lines.
uint64_t NumberOf(const std::string& text, const std::string& key) {
  const size_t at = text.rfind("\"" + key + "\":");
  EXPECT_NE(at, std::string::npos) << key << " is missing in:\n" << text;
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + key.size() + 3));
}

// The whole way: a profile without weights, a choice, a run; and what that run moves.
TEST_F(DryRun, OfAChosenRcacheForeseesWhatTheRunMoves) {
  const Flags chosen{{"--rcache", "auto"},
                     {"--device-memory", "2250KiB"},
                     {"--standalone", ""},
                     {"--accumulate", "2"}};
  Flags dry = chosen;
  dry.insert({{"--json", ""}, {"--quiet", ""}});
  const std::string plan = DryOutput(dry);
  EXPECT_GT(NumberOf(plan, "blocks"), NumberOf(plan, "smallest_blocks"));
  EXPECT_LT(NumberOf(plan, "blocks"), NumberOf(plan, "most_blocks"));
  Flags run = chosen;
  run.insert({{"--steps", "3"}, {"--eval-every", "0"}, {"--verbose", ""}});
  const auto trainer = Start(Words("chosen", run), {"TMPDIR=" + place_.path()});
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("chosen    "));
  std::ifstream file(Out("chosen") + "/metrics.jsonl");
  const std::string metrics{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(NumberOf(metrics, "bytes_h2d"), NumberOf(plan, "step_bytes_to_rank"));
  EXPECT_EQ(NumberOf(metrics, "bytes_d2h"), NumberOf(plan, "step_bytes_from_rank"));
}

}  // namespace private_server_test
}  // namespace tidepool::testing
