// memctl checkpoint: what lies in a folder, which of them are damaged, what two hold differently,
// and which are removed; no server is asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "client/memctl/commands/commands.h"
#include "client/memctl/flags/flags.h"

namespace tidepool::client {
namespace memctl_checkpoints_test {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class MemctlCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/memctl-checkpoints-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string PathOf(uint64_t version) const { return folder_ + "/" + CheckpointName(version); }

  void Save(uint64_t version, std::byte moment = {}) const {
    const std::string partial = PathOf(version) + ".partial";
    fs::create_directory(partial);
    auto writer = CheckpointWriter::Begin(
        partial, {{kMasterFile, "w", "F32", {2}}, {kMomentsFile, "w.exp_avg", "F32", {2}}});
    ASSERT_TRUE(writer.ok()) << writer.status().Format();
    const std::vector<std::byte> weights(8), moments(8, moment);
    ASSERT_TRUE(writer->Write(kMasterFile, "w", weights).ok());
    ASSERT_TRUE(writer->Write(kMomentsFile, "w.exp_avg", moments).ok());
    ASSERT_TRUE(writer->Commit({.version = version}).ok());
  }
  void Damage(uint64_t version) const {
    std::fstream file(PathOf(version) + "/" + kMomentsFile,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }

  Result<Shown> Run(std::vector<std::string> words) {
    words.insert(words.begin(), {"memctl", "checkpoint"});
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    ParsedLine line = ParseCommandLine(static_cast<int>(argv.size()), argv.data());
    if (!line.invocation.has_value()) return Status(ErrorId::kUsageError, line.text);
    return RunCommand(*line.invocation, {});
  }
  std::vector<std::string> Left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string folder_;
};

TEST_F(MemctlCheckpoint, ListShowsEachWithItsStepAndState) {
  for (const uint64_t version : {3, 6}) Save(version);
  fs::resize_file(PathOf(3) + "/" + kMomentsFile, 1);
  const auto shown = Run({"list", folder_});
  ASSERT_TRUE(shown.ok()) << shown.status().Format();
  EXPECT_THAT(shown.value().result, HasSubstr("   3  damaged"));
  EXPECT_THAT(shown.value().result, HasSubstr("   6  whole          2"));
  EXPECT_THAT(shown.value().remark,
              HasSubstr("optimizer.safetensors: the checkpoint is not whole"));
  EXPECT_EQ(shown.value().exit_code, 0);
  const auto json = Run({"list", folder_, "-o", "json"});
  ASSERT_TRUE(json.ok()) << json.status().Format();
  EXPECT_THAT(json.value().result, HasSubstr("{\"version\":6,\"state\":\"whole\""));
}

TEST_F(MemctlCheckpoint, VerifyReadsEveryByte) {
  for (const uint64_t version : {3, 6}) Save(version);
  EXPECT_EQ(Run({"verify", folder_}).value().exit_code, 0);
  Damage(6);
  const auto all = Run({"verify", folder_});
  ASSERT_TRUE(all.ok()) << all.status().Format();
  EXPECT_EQ(all.value().exit_code, kExitCorrupt);
  EXPECT_THAT(all.value().result, HasSubstr("   3  verified"));
  EXPECT_THAT(all.value().remark, HasSubstr("tensor w.exp_avg do not fit their check"));
  EXPECT_EQ(Run({"verify", PathOf(3)}).value().exit_code, 0);
  EXPECT_EQ(Run({"verify", PathOf(6)}).value().exit_code, kExitCorrupt);
}

TEST_F(MemctlCheckpoint, DiffNamesWhatDiffers) {
  Save(3);
  Save(6, std::byte{1});
  const auto same = Run({"diff", PathOf(3), PathOf(3)});
  ASSERT_TRUE(same.ok()) << same.status().Format();
  EXPECT_EQ(same.value().exit_code, 0);
  const auto other = Run({"diff", PathOf(3), PathOf(6)});
  ASSERT_TRUE(other.ok()) << other.status().Format();
  EXPECT_EQ(other.value().exit_code, kExitFailed);
  EXPECT_EQ(other.value().result,
            "version: 3 and 6\noptimizer.safetensors, w.exp_avg: other bytes\n");
}

TEST_F(MemctlCheckpoint, PruneKeepsTheNewestAndSaysBefore) {
  for (const uint64_t version : {1, 2, 3}) Save(version);
  const auto preview = Run({"prune", folder_, "--keep", "1", "--dry-run"});
  ASSERT_TRUE(preview.ok()) << preview.status().Format();
  EXPECT_THAT(preview.value().result, HasSubstr(PathOf(1) + " is removed"));
  EXPECT_EQ(Left().size(), 3U);
  ASSERT_TRUE(Run({"prune", folder_, "--keep", "1", "--yes"}).ok());
  EXPECT_EQ(Left(), std::vector<std::string>{CheckpointName(3)});
}

TEST_F(MemctlCheckpoint, WrongUseIsSaid) {
  EXPECT_EQ(Run({"list", folder_}).status().id(), ErrorId::kAdminNotFound);
  EXPECT_EQ(Run({"list", folder_ + "/none"}).status().id(), ErrorId::kFileUnreadable);
  Save(1);
  EXPECT_EQ(Run({"prune", folder_}).status().id(), ErrorId::kUsageError);
  for (const char* keep : {"0", "x", "-1"})
    EXPECT_EQ(Run({"prune", folder_, std::string("--keep=") + keep}).status().id(),
              ErrorId::kUsageError);
  EXPECT_EQ(Run({"list", folder_, "--dry-run"}).status().id(), ErrorId::kUsageError);
  EXPECT_EQ(Left().size(), 1U);
}

}  // namespace memctl_checkpoints_test
}  // namespace tidepool::client
