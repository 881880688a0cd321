// Trainers that train adapters over one base: the base lies in the pool once, each learns what it
// learns alone, and what is saved is used over that base only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/error_catalog.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace adapter_jobs_test {

using ::testing::HasSubstr;

class AdapterJobs : public TrainerRuns {
 protected:
  AdapterJobs() {
    const auto trainer = Start(Words(
        "base", {{"--socket-dir", server_.socket_dir()}, {"--steps", "2"}, {"--eval-every", "0"}}));
    ExpectDone(trainer.get());
  }
  ~AdapterJobs() override { KillDaemon(server_.socket_dir()); }

  std::string Base() const { return Out("base") + "/weights"; }
  // `name` is its directory, `job` its name: a saved file names its job.
  std::vector<std::string> AdapterWords(const std::string& name, const std::string& job,
                                        Flags more = {}) const {
    more.insert({{"--base", Base()},
                 {"--lora-rank", "4"},
                 {"--job", job},
                 {"--socket-dir", server_.socket_dir()}});
    std::vector<std::string> words = Words(name, more);
    const auto preset = std::find(words.begin(), words.end(), "--preset");
    words.erase(preset, preset + 2);
    return words;
  }
  // Trains for a while, then waits for SIGCONT.
  std::unique_ptr<ChildProcess> StartAndStop(const std::string& name, const std::string& job,
                                             const Flags& more = {}) const {
    auto trainer = Start(AdapterWords(name, job, more));
    EXPECT_TRUE(WaitForLines(name, 3, trainer.get())) << trainer->Output();
    trainer->Signal(SIGSTOP);
    return trainer;
  }
  std::string Adapters(const std::string& name) const {
    return Read(Out(name) + "/weights/adapter.safetensors");
  }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  std::string EstimateJson() const {
    const auto trainer =
        Start({"estimate", "--base", Base(), "--lora-rank", "4", "--rcache", "50%", "--json"});
    ExpectDone(trainer.get());
    return trainer->Output();
  }
  // Exit code and output of `sample` with these words behind it.
  static std::string Sample(std::vector<std::string> more, int exit_code) {
    more.insert(more.begin(), "sample");
    more.insert(more.end(), {"abc", "--tokens", "3", "--threads", "1"});
    const auto trainer = Start(more);
    const auto end = trainer->Wait(kRunNs);
    EXPECT_TRUE(end && end->exit_code == exit_code) << trainer->Output();
    return trainer->Output();
  }

  MemserverProcess server_{{"--keeper", "process", "--lease", "60s"}};
};

TEST_F(AdapterJobs, FourShareOneBaseAndLearnWhatEachLearnsAlone) {
  const std::string base = Read(Base() + "/model.safetensors"), plan = EstimateJson();
  ExpectDone(Start(AdapterWords("alone", "a")).get());
  const auto a = StartAndStop("a", "a"), b = StartAndStop("b", "b", {{"--seed", "2"}}),
             c = StartAndStop("c", "c", {{"--lr", "0.01"}}),
             d = StartAndStop("d", "d", {{"--lora-targets", "attn.c_proj,attn.c_attn"}});
  const std::string status = AskAdmin(server_.socket_dir(), "/v1/status");
  const std::string pool = status.substr(status.find("\"pool\":"));
  EXPECT_EQ(NumberIn(pool, "frozen_bytes"), NumberIn(plan, "frozen_bytes"));
  EXPECT_EQ(NumberIn(pool, "frozen_chunks"), NumberIn(plan, "frozen_chunks"));
  EXPECT_EQ(NumberIn(pool, "bytes_used"),
            NumberIn(plan, "frozen_bytes") + 4 * NumberIn(plan, "total_bytes"));
  EXPECT_THAT(a->Output(), HasSubstr("of it put by this rank"));
  for (const auto* later : {b.get(), c.get(), d.get()})
    EXPECT_THAT(later->Output(), HasSubstr("the server has it already"));
  for (auto* trainer : {a.get(), b.get(), c.get(), d.get()}) {
    trainer->Signal(SIGCONT);
    ExpectDone(trainer);
  }
  EXPECT_EQ(Losses("a").size(), kSteps + 1);
  EXPECT_EQ(Losses("a"), Losses("alone"));
  EXPECT_TRUE(Adapters("a") == Adapters("alone"));
  EXPECT_FALSE(Adapters("a").empty());
  EXPECT_FALSE(Adapters("b") == Adapters("c"));
  EXPECT_TRUE(Read(Base() + "/model.safetensors") == base);
  EXPECT_EQ(WaitForHoldings(server_.socket_dir(), kNothing, kRunNs), kNothing);
}

TEST_F(AdapterJobs, GoOnBehindTheirLastStepAndAreSampledOverTheirBaseOnly) {
  ExpectDone(Start(AdapterWords("whole", "r")).get());
  const auto killed = StartAndStop("again", "r");
  killed->Signal(SIGKILL);
  ASSERT_TRUE(killed->Wait(kRunNs));
  // Over other bytes it is not that job.
  std::filesystem::copy(Base(), Out("other"));
  std::string other = Read(Base() + "/model.safetensors");
  other.back() ^= 1;
  std::ofstream(Out("other") + "/model.safetensors", std::ios::binary) << other;
  const auto stranger =
      Start(AdapterWords("stranger", "r", {{"--resume", "auto"}, {"--base", Out("other")}}));
  EXPECT_EQ(stranger->Wait(kRunNs)->exit_code, kExitRefused) << stranger->Output();
  EXPECT_THAT(stranger->Output(), HasSubstr("error[TP3005]"));

  const auto careless = Start(AdapterWords("careless", "c", {{"--save", Base()}}));
  EXPECT_EQ(careless->Wait(kRunNs)->exit_code, kExitUsage) << careless->Output();
  EXPECT_THAT(careless->Output(), HasSubstr("adapters cannot be saved where their base lies"));

  const auto resumed = Start(AdapterWords("again", "r", {{"--resume", "auto"}}));
  ExpectDone(resumed.get());
  EXPECT_THAT(resumed->Output(), HasSubstr("goes on behind its sealed step "));
  EXPECT_TRUE(Adapters("again") == Adapters("whole"));
  EXPECT_EQ(Losses("again"), Losses("whole"));

  const std::string saved = Out("whole") + "/weights";
  EXPECT_THAT(Sample({saved}, 0), HasSubstr("abc"));
  std::filesystem::copy(Base(), Out("moved"));
  EXPECT_EQ(Sample({saved, "--base", Out("moved")}, 0), Sample({saved}, 0));
  const std::string refused =
      Sample({saved, "--base", Out("other") + "/model.safetensors"}, kExitUsage);
  for (const char* text : {"trained over another base", "   where: ", "   why:   ", "   fix:   "})
    EXPECT_THAT(refused, HasSubstr(text));
}

}  // namespace adapter_jobs_test
}  // namespace tidepool::testing
