#include "base/system/whole_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tidepool {
namespace whole_file_test {

namespace fs = std::filesystem;

class WholeFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/whole-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string In(const std::string& name) const { return folder_ + "/" + name; }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.Format(); }
  size_t FilesThere() const {
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++files;
    return files;
  }

  std::string folder_;
};

TEST_F(WholeFile, IsMadeWithAllItsParts) {
  const std::string one = "head ", other(100'000, 'x');
  ExpectOk(WriteWholeFile(In("a"),
                          {std::as_bytes(std::span(one)), {}, std::as_bytes(std::span(other))}));
  EXPECT_EQ(Read(In("a")), one + other);
  ExpectOk(WriteWholeFile(In("empty"), std::string()));
  EXPECT_EQ(Read(In("empty")), "");
  EXPECT_EQ(FilesThere(), 2U);
}

TEST_F(WholeFile, TakesThePlaceAndTheModeOfTheFormerOne) {
  Write(In("a"), std::string(5000, 'o'));
  ASSERT_EQ(chmod(In("a").c_str(), 0640), 0);
  ExpectOk(WriteWholeFile(In("a"), "new"));
  EXPECT_EQ(Read(In("a")), "new");
  struct stat about {};
  ASSERT_EQ(stat(In("a").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0640U);
}

TEST_F(WholeFile, ThatDoesNotFitLeavesTheFormerOneAndNothingBesideIt) {
  Write(In("a"), "former");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status failed = WriteWholeFile(In("a"), std::string(5000, 'n'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(failed.id(), ErrorId::kFileWriteFailed);
  EXPECT_EQ(failed.where(), In("a"));
  EXPECT_EQ(Read(In("a")), "former");
  EXPECT_EQ(FilesThere(), 1U);
}

TEST_F(WholeFile, UsesUpWhatAKilledProcessLeftBeside) {
  Write(In("a"), "former");
  Write(In("a.new"), std::string(5000, 'h'));
  ExpectOk(WriteWholeFile(In("a"), "new"));
  EXPECT_EQ(Read(In("a")), "new");
  EXPECT_EQ(FilesThere(), 1U);
}

TEST_F(WholeFile, IsWrittenWhereALinkLeads) {
  Write(In("a"), "former");
  fs::create_symlink("a", In("link"));
  ExpectOk(WriteWholeFile(In("link"), "new"));
  EXPECT_TRUE(fs::is_symlink(In("link")));
  EXPECT_EQ(Read(In("a")), "new");
}

TEST_F(WholeFile, ADeviceIsWrittenAndNotReplaced) {
  ExpectOk(WriteWholeFile("/dev/null", "nothing"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(WriteWholeFile("/dev/full", "x").id(), ErrorId::kFileWriteFailed);
}

TEST_F(WholeFile, WithoutItsFolderIsAnError) {
  EXPECT_EQ(WriteWholeFile(In("nowhere/a"), "x").id(), ErrorId::kFileWriteFailed);
  EXPECT_EQ(FilesThere(), 0U);
}

TEST_F(WholeFile, ThatIsNotCommittedLeavesTheFormerOne) {
  Write(In("a"), "former");
  {
    auto file = tidepool::WholeFile::Begin(In("a")).value();
    ExpectOk(file.Write(std::as_bytes(std::span("half", 4))));
    EXPECT_EQ(Read(In("a")), "former");
  }
  EXPECT_EQ(Read(In("a")), "former");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);

  auto file = tidepool::WholeFile::Begin(In("a")).value();
  ExpectOk(file.Write(std::as_bytes(std::span("one, ", 5))));
  ExpectOk(file.Write(std::as_bytes(std::span("two", 3))));
  ExpectOk(file.Commit());
  EXPECT_EQ(Read(In("a")), "one, two");
}

}  // namespace whole_file_test
}  // namespace tidepool
