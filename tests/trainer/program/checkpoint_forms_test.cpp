// Checkpoints by the real programs of states in every form: on NVMe, in 8 bits, and of adapters.
// All processes are killed, and the run goes on behind its newest checkpoint with the bits of the
// run that nobody disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/error_catalog.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace checkpoint_forms_test {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CheckpointForms : public TrainerRuns {
 protected:
  std::string Folder() const { return Out("checkpoints"); }
  std::string Checkpoint(uint64_t version) const {
    return Folder() + "/" + CheckpointName(version);
  }
  // Saves at each second step, and dies by SIGKILL as the checkpoint of step 6 is asked for; that
  // of step 4 is whole then.
  void RunUntilKilled(const std::vector<std::string>& words) const {
    std::vector<std::string> saving = words;
    saving.insert(saving.end(), {"--checkpoint-every", "2", "--checkpoint-dir", Folder()});
    const auto trainer = Start(saving, {"TIDEPOOL_KILL_AT=client.stream_sent:3"});
    const auto end = trainer->Wait(kRunNs);
    ASSERT_TRUE(end) << trainer->Output();
    ASSERT_EQ(end->signal, SIGKILL) << trainer->Output();
    const Status whole = VerifyCheckpoint(Checkpoint(4));
    EXPECT_TRUE(whole.ok()) << whole.Format();
  }
  void RunToTheEnd(const std::vector<std::string>& words) const {
    const auto trainer = Start(words);
    ExpectDone(trainer.get());
  }
  static std::vector<std::string> With(std::vector<std::string> words,
                                       const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(CheckpointForms, EightBitMomentsGoOnWithTheSameBits) {
  const Flags flags{{"--standalone", ""},
                    {"--job", "j"},
                    {"--dtype", "bf16"},
                    {"--states", "split-8bit"},
                    {"--steps", "8"}};
  RunToTheEnd(Words("whole", flags));
  RunUntilKilled(Words("killed", flags));
  RunToTheEnd(With(Words("killed", flags), {"--resume", Checkpoint(4)}));
  EXPECT_TRUE(Weights("killed") == Weights("whole"));

  Flags others = flags;
  others["--states"] = "split-bf16";
  const auto refused = Start(With(Words("other", others), {"--resume", Checkpoint(4)}));
  const auto end = refused->Wait(kRunNs);
  ASSERT_TRUE(end) << refused->Output();
  EXPECT_NE(end->exit_code, 0);
  EXPECT_THAT(refused->Output(), HasSubstr("the moments of the checkpoint are I8"));
}

// Out of NVMe and into it; and into the host pool.
TEST_F(CheckpointForms, StatesOnNvmeGoOnThereAndOnTheHostWithTheSameBits) {
  Flags flags{{"--standalone", ""}, {"--job", "j"}, {"--steps", "8"}};
  RunToTheEnd(Words("whole", flags));
  const auto on_host = With(Words("host", flags), {"--resume", Checkpoint(4)});
  flags.erase("--standalone");
  for (const bool goes_on : {false, true}) {
    const TemporaryDirectory drive;
    const MemserverProcess server({"--nvme", drive.path() + ":64MiB", "--states-on", "nvme"});
    flags["--socket-dir"] = server.socket_dir();
    const std::vector<std::string> words = Words("killed", flags);
    goes_on ? RunToTheEnd(With(words, {"--resume", Checkpoint(4)})) : RunUntilKilled(words);
  }
  EXPECT_TRUE(Weights("killed") == Weights("whole"));
  RunToTheEnd(on_host);
  EXPECT_TRUE(Weights("host") == Weights("whole"));
}

TEST_F(CheckpointForms, AdaptersGoOnOverTheirBaseAlone) {
  const auto base_of = [this](const std::string& name, const std::string& seed) {
    RunToTheEnd(Words(name, {{"--standalone", ""}, {"--steps", "1"}, {"--seed", seed}}));
    return Out(name) + "/weights";
  };
  const std::string base = base_of("base", "1"), other = base_of("other-base", "2");
  const auto words = [this](const std::string& name, const std::string& over) {
    std::vector<std::string> run = Words(name, {{"--standalone", ""},
                                                {"--job", "a"},
                                                {"--steps", "8"},
                                                {"--base", over},
                                                {"--lora-rank", "4"}});
    const auto preset = std::find(run.begin(), run.end(), "--preset");
    run.erase(preset, preset + 2);
    return run;
  };
  const auto adapters = [this](const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(Out(name) + "/weights/adapter.safetensors", std::ios::binary).rdbuf();
    return text.str();
  };

  RunToTheEnd(words("whole", base));
  RunUntilKilled(words("killed", base));
  RunToTheEnd(With(words("killed", base), {"--resume", Checkpoint(4)}));
  EXPECT_GT(adapters("whole").size(), 1000U);
  EXPECT_TRUE(adapters("killed") == adapters("whole"));

  const auto refused = Start(With(words("refused", other), {"--resume", Checkpoint(4)}));
  const auto end = refused->Wait(kRunNs);
  ASSERT_TRUE(end) << refused->Output();
  EXPECT_NE(end->exit_code, 0);
  EXPECT_THAT(refused->Output(), HasSubstr("were trained over another base"));
  // It is a directory of adapters like that of --save.
  const auto sample = Start({"sample", Checkpoint(4), "abc", "--tokens", "3", "--threads", "1"});
  ExpectDone(sample.get());
}

}  // namespace checkpoint_forms_test
}  // namespace tidepool::testing
