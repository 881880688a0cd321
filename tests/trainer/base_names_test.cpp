// What a base is called is found once, and remembered for the file and the layout that it was found
// for.
#include "trainer/inputs/base_names.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/formats/safetensors.h"
#include "base/point.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/inputs/model_config.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace base_names_test {

const GptShape kShape{"deep", 256, 16, 2, 2, 32};

class BaseNamesTest : public ::testing::Test {
 protected:
  BaseNamesTest() {
    std::string name = "/tmp/tidepool-names-XXXXXX";
    directory_ = mkdtemp(name.data());
    out_ = directory_ + "/out";
    std::filesystem::create_directory(out_);
    EXPECT_TRUE(
        WriteModelConfig(directory_, {.shape = kShape, .bytes = true, .lora = {}, .base = {}})
            .ok());
    SafetensorsHeader header;
    for (const ParameterNote& note : GptParameters(kShape)) {
      header.tensors.push_back({.name = note.name, .dtype = "F32", .shape = note.dims});
    }
    std::string text = EncodeSafetensorsHeader(&header).value();
    std::ofstream(File(), std::ios::binary) << text << std::string(header.tensors.back().end, 'w');
  }
  ~BaseNamesTest() override { std::filesystem::remove_all(directory_); }

  std::string File() const { return directory_ + "/model.safetensors"; }
  std::string Remembered() const { return out_ + "/base.names"; }
  std::shared_ptr<const FrozenBase> Open(const std::string& dtype = "fp32") const {
    RunOptions options;
    options.adapters.base = directory_;
    options.adapters.rank = 4;
    options.memory.chunk_size = "16KiB";
    options.memory.rcache = "50%";
    options.model.dtype = dtype;
    Result<RunPlan> plan = MakeRunPlan(options, 1, 0, "job");
    EXPECT_TRUE(plan.ok()) << plan.status().Format();
    return plan.value().base;
  }
  // As a process that begins long after the file was changed last.
  BaseNames Names(const std::string& dtype = "fp32") const {
    return BaseNames(Open(dtype), out_, WallSeconds() + 100);
  }
  // The last bytes of the file: of the last tensor.
  void ChangeFile(char to) const {
    const UniqueFd fd(open(File().c_str(), O_WRONLY | O_CLOEXEC));
    const auto last = static_cast<off_t>(std::filesystem::file_size(File()) - 1);
    ASSERT_EQ(pwrite(fd.get(), &to, 1, last), 1);
  }
  static std::string ReadText(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  // Puts another name for chunk `index` where names are remembered: only a process that does not
  // hash would take it.
  ContentHash Forge(size_t index) const {
    std::string text = ReadText(Remembered());
    text.resize(text.rfind("seal "));
    size_t at = 0;
    for (size_t i = 0; i <= index; ++i) at = text.find("chunk ", at) + 6;
    const ContentHash forged = HashOf(std::as_bytes(std::span("forged")));
    text.replace(at, 64, HexOf(forged));
    std::ofstream(Remembered(), std::ios::binary)
        << text << "seal " << HexOf(HashOf(std::as_bytes(std::span(text)))) << "\n";
    return forged;
  }

  std::string directory_, out_;
};

TEST_F(BaseNamesTest, AreThoseOfTheBytes) {
  BaseNames names = Names();
  EXPECT_EQ(names.Chunks().value(), Open()->HashChunks().value());
  EXPECT_EQ(names.File().value(), Open()->file().HashFile().value());
  EXPECT_EQ(names.FileOrNothing(), HexOf(names.File().value()));
}

// Ranks that start together.
TEST_F(BaseNamesTest, AreMadeByOneOfTheRanksThatShareTheFolder) {
  for (const bool folder_is_there : {true, false}) {
    std::filesystem::remove_all(out_);
    if (folder_is_there) std::filesystem::create_directory(out_);
    std::vector<BaseNames> ranks;
    for (int rank = 0; rank < 4; ++rank) ranks.push_back(Names());
    std::atomic<int> hashed{0};
    SetPointHook([&hashed](const char* name) {
      hashed += std::string_view(name) == "trainer.base_hashed" ? 1 : 0;
    });
    std::vector<std::vector<ContentHash>> found(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([&, i] { found[i] = ranks[i].Chunks().value(); });
    for (std::thread& thread : threads) thread.join();
    SetPointHook({});
    EXPECT_EQ(hashed, 1);
    for (const auto& each : found) EXPECT_EQ(each, Open()->HashChunks().value());
  }
}

TEST_F(BaseNamesTest, AreMadeByEachWhereTheFolderHasNoLock) {
  std::filesystem::create_directory(out_ + "/base.names.lock");
  EXPECT_EQ(Names().Chunks().value(), Open()->HashChunks().value());
}

TEST_F(BaseNamesTest, AreRememberedAndNotMadeAgain) {
  BaseNames first = Names();
  ASSERT_GT(first.Chunks().value().size(), 2U);
  first.Remember();
  const ContentHash forged = Forge(1);
  BaseNames second = Names();
  EXPECT_EQ(second.Chunks().value()[1], forged);
  EXPECT_EQ(second.Chunks().value()[0], first.Chunks().value()[0]);
}

TEST_F(BaseNamesTest, OfTheFileAreRememberedOnceTheyAreKnown) {
  BaseNames first = Names();
  ASSERT_TRUE(first.Chunks().ok());
  first.Remember();
  const std::string without = ReadText(Remembered());
  const ContentHash file = first.File().value();
  first.Remember();
  EXPECT_EQ(without.find(HexOf(file)), std::string::npos);
  EXPECT_NE(ReadText(Remembered()).find("file " + HexOf(file)), std::string::npos);
  BaseNames second = Names();
  EXPECT_EQ(second.File().value(), file);
}

// Same size, and the time of its bytes set back: what remains is the time of any change.
TEST_F(BaseNamesTest, OfAFileThatWasChangedAreMadeAgain) {
  BaseNames first = Names();
  const std::vector<ContentHash> before = first.Chunks().value();
  first.Remember();
  struct stat seen {};
  ASSERT_EQ(stat(File().c_str(), &seen), 0);
  ChangeFile('x');
  const timespec times[2] = {seen.st_atim, seen.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, File().c_str(), times, 0), 0);
  BaseNames second = Names();
  EXPECT_NE(second.Chunks().value(), before);
  EXPECT_EQ(second.Chunks().value(), Open()->HashChunks().value());
  second.Remember();
  EXPECT_EQ(Names().Chunks().value(), second.Chunks().value());
}

TEST_F(BaseNamesTest, OfAnotherFileOfTheSameBytesAreMadeAgain) {
  BaseNames first = Names();
  ASSERT_TRUE(first.Chunks().ok());
  first.Remember();
  const ContentHash forged = Forge(0);
  std::filesystem::copy_file(File(), directory_ + "/copy");
  std::filesystem::rename(directory_ + "/copy", File());
  EXPECT_NE(Names().Chunks().value()[0], forged);
}

TEST_F(BaseNamesTest, OfAnotherLayoutAreMadeAgain) {
  BaseNames first = Names();
  ASSERT_TRUE(first.Chunks().ok());
  first.Remember();
  EXPECT_NE(Names("bf16").Chunks().value(), first.Chunks().value());
  EXPECT_EQ(Names("bf16").Chunks().value(), Open("bf16")->HashChunks().value());
}

TEST_F(BaseNamesTest, ThatAreDamagedAreNone) {
  BaseNames first = Names();
  const std::vector<ContentHash> whole = first.Chunks().value();
  first.Remember();
  const std::string text = ReadText(Remembered());
  for (size_t at = 0; at < text.size(); at += 3) {
    std::string damaged = text;
    damaged[at] = damaged[at] == '1' ? '2' : '1';
    std::ofstream(Remembered(), std::ios::binary) << damaged;
    ASSERT_EQ(Names().Chunks().value(), whole) << at;
  }
  for (size_t length = 0; length < text.size(); length += 7) {
    std::ofstream(Remembered(), std::ios::binary) << text.substr(0, length);
    ASSERT_EQ(Names().Chunks().value(), whole) << length;
  }
}

// A second change in the same tick of the file system's clock would not show.
TEST_F(BaseNamesTest, OfAFileThatWasJustChangedAreNotRemembered) {
  BaseNames young(Open(), out_, WallSeconds());
  ASSERT_TRUE(young.Chunks().ok());
  EXPECT_TRUE(young.File().ok());
  young.Remember();
  EXPECT_FALSE(std::filesystem::exists(Remembered()));
}

TEST_F(BaseNamesTest, NeedNoFolder) {
  for (const std::string& folder : {std::string(), std::string("/nonexistent/run"), File()}) {
    BaseNames names(Open(), folder, WallSeconds() + 100);
    ASSERT_TRUE(names.Chunks().ok()) << folder;
    names.Remember();
    EXPECT_EQ(BaseNames(Open(), folder, WallSeconds() + 100).Chunks().value(),
              names.Chunks().value());
  }
}

TEST_F(BaseNamesTest, OfAFileThatChangesUnderTheRunAreNotGiven) {
  BaseNames names = Names();
  ASSERT_TRUE(names.Chunks().ok());
  ASSERT_EQ(chmod(File().c_str(), 0400), 0);
  EXPECT_TRUE(Names().File().ok()) << "its bytes are the same";
  EXPECT_TRUE(names.File().ok()) << "its bytes are the same";
  chmod(File().c_str(), 0600);
  BaseNames other = Names();
  ASSERT_TRUE(other.Chunks().ok());
  ChangeFile('x');
  EXPECT_EQ(other.File().status().id(), ErrorId::kDataBad);
  EXPECT_EQ(other.FileOrNothing(), "");
  other.Remember();
  EXPECT_EQ(Names().Chunks().value(), Open()->HashChunks().value())
      << "what is remembered is of the file as it was";
}

}  // namespace base_names_test
}  // namespace tidepool::trainer
