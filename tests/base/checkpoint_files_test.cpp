// Checkpoints on disk: there whole or not at all, whatever fails and wherever the power is cut;
// what is damaged is named; the newest ones are kept.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/random.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;

std::vector<CheckpointTensor> Tensors() {
  return {{kMasterFile, "w", "F32", {4, 3}},
          {kMasterFile, "b", "F32", {}},
          {kMomentsFile, "w.exp_avg", "F32", {4, 3}},
          {kMomentsFile, "b.exp_avg", "F32", {}}};
}

std::vector<std::byte> BytesOf(const CheckpointTensor& tensor, uint64_t version) {
  uint64_t count = 4;
  for (const uint64_t dim : tensor.shape) count *= dim;
  return std::vector<std::byte>(count, static_cast<std::byte>(version + tensor.name.size()));
}

// What a power cut leaves of a folder: every file as it was synced last, and of directories that
// were not synced since either the new entries or none of them.
class Disk {
 public:
  explicit Disk(uint64_t cut_at) : cut_at_(cut_at) {}
  int operator()(const std::string& operation, const std::string& path) {
    if (count_++ >= cut_at_) return EIO;
    if (operation == "create") synced_[path] = 0;
    if (operation == "sync") synced_[path] = 1;
    if (operation == "rename") renamed_ = path;
    if (operation == "syncdir") {
      listed_.push_back(path);
      if (!renamed_.empty() && fs::path(renamed_).parent_path() == path) renamed_.clear();
    }
    return 0;
  }
  // Bytes that never reached the disk are gone.
  void Lose(const std::string& partial, const std::string& final_path) const {
    for (const auto& [path, synced] : synced_) {
      if (synced != 0) continue;
      const std::string moved = final_path + "/" + std::string(fs::path(path).filename());
      for (const std::string& place : {path, moved}) {
        if (fs::exists(place)) fs::resize_file(place, 0);
      }
    }
    if (!renamed_.empty() && fs::exists(final_path) && !fs::exists(partial))
      fs::rename(final_path, partial);
  }
  uint64_t count() const { return count_; }

 private:
  uint64_t cut_at_;
  uint64_t count_ = 0;
  std::map<std::string, int> synced_;
  std::vector<std::string> listed_;
  std::string renamed_;
};

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The disk before an operation: what the files of a new checkpoint hold, and what of it is sure.
struct Moment {
  std::map<std::string, std::string> files, synced;  // bytes by name
  std::set<std::string> listed;                      // names that the directory is sure to have
  bool renamed = false, rename_is_sure = false;
};

// Writes down the moment before each operation of one save.
class Recorder {
 public:
  Recorder(std::string partial, std::string final_path)
      : partial_(std::move(partial)), final_(std::move(final_path)) {}
  int operator()(const std::string& operation, const std::string& path) {
    moments.push_back(Now());
    last_ = operation;
    last_path_ = path;
    return 0;
  }
  // Called once more when all is done.
  Moment Now() {
    renamed_ = renamed_ || last_ == "rename";
    Moment now = moments.empty() ? Moment() : moments.back();
    now.renamed = renamed_;
    const std::string place = renamed_ ? final_ : partial_;
    now.files.clear();
    for (const auto& entry : fs::directory_iterator(place))
      now.files[entry.path().filename()] = ReadText(entry.path());
    const std::string name = fs::path(last_path_).filename();
    if (last_ == "sync") now.synced[name] = now.files[name];
    if (last_ == "syncdir" && last_path_ == partial_) {
      for (const auto& [each, bytes] : now.files) now.listed.insert(each);
    }
    if (last_ == "syncdir" && renamed_) now.rename_is_sure = true;
    return now;
  }

  std::vector<Moment> moments;

 private:
  const std::string partial_, final_;
  std::string last_, last_path_;
  bool renamed_ = false;
};

// Some of `bytes`, whose file was not synced: any prefix, with or without zeros behind it, or with
// a hole.
std::string Torn(const std::string& bytes, SplitMix64* random) {
  if (bytes.empty() || random->Below(4) == 0) return bytes;
  std::string torn = bytes;
  const uint64_t begin = random->Below(bytes.size()),
                 end = begin + random->Below(bytes.size() - begin) + 1;
  switch (random->Below(3)) {
    case 0: torn.resize(begin); break;
    case 1: std::fill(torn.begin() + static_cast<ptrdiff_t>(begin), torn.end(), '\0'); break;
    default:
      std::fill(torn.begin() + static_cast<ptrdiff_t>(begin),
                torn.begin() + static_cast<ptrdiff_t>(end), '\0');
  }
  return torn;
}

class CheckpointFiles : public testing::Test {
 protected:
  void SetUp() override {
    // In memory where that may be: thousands of small files come and go.
    const bool has_shm = access("/dev/shm", W_OK) == 0;
    std::string name = (has_shm ? "/dev/shm" : testing::TempDir()) + "/checkpoints-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string PathOf(uint64_t version) const { return folder_ + "/" + CheckpointName(version); }

  Status Save(uint64_t version, FileFault fault = nullptr) {
    const std::string partial = PathOf(version) + ".partial";
    fs::remove_all(partial);
    fs::create_directory(partial);
    std::ofstream(partial + "/config.json") << "{}";
    TP_ASSIGN_OR_RETURN(CheckpointWriter writer,
                        CheckpointWriter::Begin(partial, Tensors(), std::move(fault)));
    for (const CheckpointTensor& tensor : Tensors()) {
      const std::vector<std::byte> bytes = BytesOf(tensor, version);
      TP_RETURN_IF_ERROR(writer.Write(tensor.file, tensor.name, std::span(bytes).first(4)));
      TP_RETURN_IF_ERROR(writer.Write(tensor.file, tensor.name, std::span(bytes).subspan(4)));
    }
    return writer.Commit({.version = version, .optimizer_step = version - 1, .loss_scale = 0.5F});
  }

  // What a file system may find after a power cut at `moment`. True: under the checkpoint's name.
  bool Leave(const Moment& moment, SplitMix64* random) const {
    const bool named = moment.renamed && (moment.rename_is_sure || random->Below(2) == 0);
    const std::string place = PathOf(6) + (named ? "" : ".partial");
    fs::create_directory(place);
    for (const auto& [name, bytes] : moment.files) {
      if (!moment.listed.contains(name) && random->Below(2) == 0) continue;
      const auto sure = moment.synced.find(name);
      const bool is_sure = sure != moment.synced.end() && sure->second == bytes;
      std::ofstream(place + "/" + name, std::ios::binary)
          << (is_sure ? bytes : Torn(bytes, random));
    }
    return named;
  }

  std::string folder_;
};

TEST_F(CheckpointFiles, AWholeOneReadsBack) {
  ASSERT_TRUE(Save(7).ok());
  Result<Manifest> manifest = OpenCheckpoint(PathOf(7));
  ASSERT_TRUE(manifest.ok()) << manifest.status().Format();
  EXPECT_EQ(manifest->step.version, 7U);
  EXPECT_EQ(manifest->step.loss_scale, 0.5F);
  EXPECT_EQ(manifest->files.size(), 3U);
  EXPECT_TRUE(VerifyCheckpoint(PathOf(7)).ok());
  EXPECT_FALSE(fs::exists(PathOf(7) + ".partial"));
}

TEST_F(CheckpointFiles, PowerCutAtEveryOperationLeavesTheOldOneOrTheNew) {
  uint64_t operations = 0;
  for (uint64_t cut = 0; operations == 0 || cut <= operations; ++cut) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    ASSERT_TRUE(Save(3).ok());
    Disk disk(cut);
    const bool saved = Save(6, [&disk](const char* operation, const std::string& path) {
                         return disk(operation, path);
                       }).ok();
    disk.Lose(PathOf(6) + ".partial", PathOf(6));
    if (saved) operations = disk.count();

    auto found = FindCheckpoints(folder_);
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(VerifyCheckpoint(PathOf(3)).ok()) << "cut at " << cut;
    for (const FoundCheckpoint& one : *found) {
      EXPECT_EQ(one.state.ok(), VerifyCheckpoint(one.path).ok()) << "cut at " << cut;
    }
    EXPECT_TRUE(!saved || VerifyCheckpoint(PathOf(6)).ok());
    ASSERT_TRUE(RemovePartials(folder_).ok());
    ASSERT_TRUE(Save(6).ok()) << "after a cut at " << cut;
  }
  EXPECT_GE(operations, 20U);
}

// Any subset of what was not synced may be there, each file torn in any way.
TEST_F(CheckpointFiles, PowerCutsLeaveAWholeOneOrNoneWhateverTheFileSystemKeeps) {
  constexpr int kCuts = 20'000;
  Recorder recorder(PathOf(6) + ".partial", PathOf(6));
  ASSERT_TRUE(Save(6, [&recorder](const char* operation, const std::string& path) {
                return recorder(operation, path);
              }).ok());
  recorder.moments.push_back(recorder.Now());
  SplitMix64 random(1);
  int whole = 0;
  for (int cut = 0; cut < kCuts; ++cut) {
    fs::remove_all(PathOf(6));
    fs::remove_all(PathOf(6) + ".partial");
    const size_t at = random.Below(recorder.moments.size());
    const bool named = Leave(recorder.moments[at], &random);
    auto found = FindCheckpoints(folder_);
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found->size(), named ? 1U : 0U);
    if (!named) continue;
    ++whole;
    const Status read = VerifyCheckpoint(PathOf(6));
    ASSERT_TRUE(read.ok()) << "cut " << cut << " before operation " << at << ": " << read.Format();
  }
  EXPECT_GT(whole, 100);
  EXPECT_LT(whole, kCuts / 2);
}

// The same step again, as a run that was set back to an earlier one comes to.
TEST_F(CheckpointFiles, OneOfThatStepStaysUntilTheNewOneIsWhole) {
  for (uint64_t cut = 0;; ++cut) {
    ASSERT_TRUE(Save(6).ok());
    Disk disk(cut);
    const bool saved = Save(6, [&disk](const char* operation, const std::string& path) {
                         return disk(operation, path);
                       }).ok();
    ASSERT_TRUE(VerifyCheckpoint(PathOf(6)).ok()) << "cut at " << cut;
    if (saved) break;
  }
}

TEST_F(CheckpointFiles, FaultsAreNamedAndLeaveTheOthers) {
  ASSERT_TRUE(Save(3).ok());
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    for (const std::string at : {"create", "write", "sync", "syncdir", "rename"}) {
      const Status failed = Save(6, [&](const char* operation, const std::string&) {
        return operation == at ? error : 0;
      });
      EXPECT_EQ(failed.id(), ErrorId::kSaveFailed) << at;
      EXPECT_NE(failed.what().find(std::strerror(error)), std::string::npos) << failed.what();
      EXPECT_FALSE(failed.where().empty());
      EXPECT_TRUE(VerifyCheckpoint(PathOf(3)).ok());
    }
  }
}

TEST_F(CheckpointFiles, ARemovedDirectoryIsNamed) {
  const Status failed = Save(6, [&](const char* operation, const std::string&) {
    if (operation == std::string("syncdir")) fs::remove_all(PathOf(6) + ".partial");
    return 0;
  });
  EXPECT_EQ(failed.id(), ErrorId::kSaveFailed);
  EXPECT_FALSE(fs::exists(PathOf(6)));
}

TEST_F(CheckpointFiles, EveryFlippedByteIsNamedWithFileAndTensor) {
  ASSERT_TRUE(Save(7).ok());
  for (const char* name : {kMasterFile, kMomentsFile, kManifestFile, "config.json"}) {
    const std::string path = PathOf(7) + "/" + name;
    const uint64_t bytes = fs::file_size(path);
    for (uint64_t at = 0; at < bytes; ++at) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const int old = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(old ^ 4));
      file.flush();
      const Status verdict = VerifyCheckpoint(PathOf(7));
      EXPECT_FALSE(verdict.ok()) << name << " byte " << at;
      EXPECT_NE(verdict.where().find(name), std::string::npos) << verdict.Format();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(old));
    }
  }
  EXPECT_TRUE(VerifyCheckpoint(PathOf(7)).ok());
}

TEST_F(CheckpointFiles, APartialOneIsItsWritersAsLongAsThatLives) {
  auto living = PartialCheckpoint::Make(folder_, CheckpointName(5));
  ASSERT_TRUE(living.ok()) << living.status().Format();
  std::ofstream(living->path() + "/config.json") << "{}";
  EXPECT_EQ(PartialCheckpoint::Make(folder_, CheckpointName(5)).status().id(),
            ErrorId::kSaveFailed);
  fs::create_directory(PathOf(4) + ".partial");
  ASSERT_TRUE(RemovePartials(folder_).ok());
  EXPECT_TRUE(fs::exists(living->path() + "/config.json"));
  EXPECT_FALSE(fs::exists(PathOf(4) + ".partial")) << "its writer is gone";

  const std::string path = living->path();
  *living = PartialCheckpoint();
  ASSERT_TRUE(RemovePartials(folder_).ok());
  EXPECT_FALSE(fs::exists(path));
  PartialCheckpoint again = std::move(PartialCheckpoint::Make(folder_, CheckpointName(5))).value();
  again.Remove();
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(CheckpointFiles, TheNewestWholeOnesAreKept) {
  for (const uint64_t version : {1, 2, 3, 4}) ASSERT_TRUE(Save(version).ok());
  fs::resize_file(PathOf(3) + "/" + kMomentsFile, 1);
  auto removed = PruneCheckpoints(folder_, 2);
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(*removed, std::vector<std::string>{PathOf(1)})
      << "a damaged one does not count, and stays among the newest";
  EXPECT_TRUE(fs::exists(PathOf(2)));
}

TEST(CheckpointManifest, AnyBytesAreRead) {
  Manifest manifest{.step = {.version = 9}, .files = {{"a", 8, 8, 1}}, .tensors = {{"a", "t", 2}}};
  const std::string text = TextOf(manifest);
  ASSERT_TRUE(ReadManifest(text).ok());
  for (size_t length = 0; length < text.size(); ++length)
    EXPECT_FALSE(ReadManifest(text.substr(0, length)).ok()) << length;

  SplitMix64 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string changed = text;
    const uint64_t edits = 1 + random.Below(4);
    for (uint64_t i = 0; i < edits; ++i)
      changed[random.Below(changed.size())] = static_cast<char>(random.Next());
    EXPECT_TRUE(changed == text || !ReadManifest(changed).ok());
  }
}

}  // namespace
}  // namespace tidepool
