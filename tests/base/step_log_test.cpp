// The log of steps on disk: what was synced is read back whatever a power cut leaves of the rest;
// damage is named; a run that goes on is followed; what a checkpoint has made needless goes.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/checkpoint/step_log.h"
#include "base/checkpoint/step_log_writer.h"
#include "base/random.h"

namespace tidepool {
namespace step_log_test {

namespace fs = std::filesystem;

constexpr uint32_t kModel = 77;
// Parameters of two chunks, in bytes.
const std::vector<uint64_t> kGradients{640, 64, 2, 1280};

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::vector<std::byte> GradientOf(uint32_t parameter, uint64_t version, uint64_t seed = 0) {
  SplitMix64 random(version * 16 + parameter + seed * 1000);
  std::vector<std::byte> bytes(kGradients[parameter]);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

LoggedStep StepOf(uint64_t version, bool skipped = false) {
  return {.version = version,
          .optimizer_step = version - 1,
          .data_cursor = version * 100,
          .random_state = version * 7,
          .grad_norm = 0.5,
          .learning_rate = 1e-3f,
          .loss_scale = 8,
          .scaler_steps = static_cast<uint32_t>(version),
          .skipped = skipped ? 1U : 0U};
}

class StepLogTest : public ::testing::Test {
 protected:
  StepLogTest() {
    // In memory: what the drive would keep of a cut is simulated.
    const fs::path where = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    std::string path = where / "step-log-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~StepLogTest() override { fs::remove_all(folder_); }

  std::unique_ptr<StepLogWriter> Writer(uint64_t run, uint64_t base, uint64_t previous = 0,
                                        FileFault fault = nullptr) {
    auto writer = StepLogWriter::Begin({.folder = folder_,
                                        .run = run,
                                        .previous = previous,
                                        .base = base,
                                        .model = kModel,
                                        .fault = std::move(fault)});
    EXPECT_TRUE(writer.ok()) << writer.status().Format();
    return writer.ok() ? std::move(writer).value() : nullptr;
  }

  // Chunk after chunk, the last one first; the first chunk in two runs.
  static Status Append(StepLogWriter* writer, uint64_t version, uint64_t seed = 0) {
    TP_RETURN_IF_ERROR(writer->Gradients(3, 0, GradientOf(3, version, seed)));
    std::vector<std::byte> bytes;
    for (uint32_t p = 0; p < 3; ++p) {
      const std::vector<std::byte> own = GradientOf(p, version, seed);
      bytes.insert(bytes.end(), own.begin(), own.end());
    }
    const std::span all(bytes);
    TP_RETURN_IF_ERROR(writer->Gradients(0, 0, all.first(600)));
    TP_RETURN_IF_ERROR(writer->Gradients(0, 600, all.subspan(600)));
    return writer->EndStep(StepOf(version));
  }

  Result<StepLog> Open(uint64_t run, uint64_t base, uint64_t last = UINT64_MAX) const {
    return StepLog::Open({.folder = folder_,
                          .run = run,
                          .base = base,
                          .model = kModel,
                          .gradient_bytes = kGradients,
                          .last = last});
  }

  static void ExpectStep(StepLog* log, size_t index, uint64_t version, uint64_t seed = 0) {
    ASSERT_EQ(log->steps()[index], StepOf(version));
    for (uint32_t p = 0; p < kGradients.size(); ++p) {
      std::vector<std::byte> bytes(kGradients[p]);
      const Status read = log->Read(index, p, 0, bytes);
      ASSERT_TRUE(read.ok()) << read.Format();
      ASSERT_TRUE(bytes == GradientOf(p, version, seed)) << "step " << version << ", " << p;
    }
  }

  std::string PathOf(uint64_t base, uint64_t run) const {
    return folder_ + "/" + SegmentName(base, run);
  }

  std::string folder_;
};

TEST_F(StepLogTest, StepsComeBackAsTheyWere) {
  const auto writer = Writer(5, 10);
  for (uint64_t version = 11; version <= 14; ++version) {
    if (version == 13) {
      ASSERT_TRUE(writer->Roll().ok());
    }
    ASSERT_TRUE(Append(writer.get(), version).ok());
  }
  ASSERT_TRUE(writer->EndStep(StepOf(15, true)).ok());
  ASSERT_TRUE(writer->End().ok());
  EXPECT_EQ(writer->synced(), 15U);

  Result<StepLog> log = Open(5, 10);
  ASSERT_TRUE(log.ok()) << log.status().Format();
  ASSERT_EQ(log->steps().size(), 5U);
  for (size_t i = 0; i < 4; ++i) ExpectStep(&*log, i, 11 + i);
  EXPECT_EQ(log->steps()[4].skipped, 1U);
  std::vector<std::byte> part(20);
  ASSERT_TRUE(log->Read(1, 0, 590, part).ok()) << "over the end of a run of bytes";
  EXPECT_EQ(std::memcmp(part.data(), GradientOf(0, 12).data() + 590, 20), 0);

  EXPECT_EQ(Open(5, 10, 12)->steps().size(), 2U) << "no further than asked";
  EXPECT_EQ(Open(5, 12)->steps().size(), 3U) << "behind a later checkpoint";
  EXPECT_EQ(Open(6, 10)->steps().size(), 0U) << "of a run that has none";
  EXPECT_EQ(Open(5, 11)->steps().size(), 0U) << "no segment begins there";
}

// The heads of frames are all that is written beside the gradients.
TEST_F(StepLogTest, BytesAreThoseOfTheGradients) {
  const auto writer = Writer(5, 0);
  const std::vector<std::byte> chunk(1 << 20);
  for (uint64_t version = 1; version <= 4; ++version) {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(writer->Gradients(0, i * chunk.size(), chunk).ok());
    ASSERT_TRUE(writer->EndStep(StepOf(version)).ok());
  }
  EXPECT_LE(static_cast<double>(writer->bytes()), 1.025 * 16 * (1 << 20));
}

// What a file system may leave of unsynced bytes: pages of any of the writes, in any order, and any
// length behind the synced ones.
std::string Torn(const std::string& synced, const std::string& written, SplitMix64* random) {
  constexpr size_t kPage = 512;
  std::string left = written;
  for (size_t page = synced.size() / kPage * kPage; page < left.size(); page += kPage) {
    if (random->Below(3) != 0) continue;
    const size_t begin = std::max(page, synced.size()), end = std::min(page + kPage, left.size());
    std::fill(left.begin() + static_cast<ptrdiff_t>(begin),
              left.begin() + static_cast<ptrdiff_t>(end), '\0');
  }
  if (random->Below(2) == 0)
    left.resize(synced.size() + random->Below(left.size() - synced.size() + 1));
  return left;
}

struct Moment {
  std::map<std::string, std::string> written, synced;  // by name of the file
  bool listed = true;                                  // the newest name is sure
  std::string newest;
  uint64_t safe = 0, appended = 0;  // versions
};

// Sanitizers look at memory; the prefixes are the release build's matter.
#ifdef TIDEPOOL_SANITIZED
constexpr int kCuts = 1'000;
#else
constexpr int kCuts = 20'000;
#endif

// The power is cut before each operation and each write of a log; every time some other part of the
// unsynced bytes has reached the drive.
TEST_F(StepLogTest, APowerCutAnywhereLeavesAWholePrefixOfSteps) {
  std::vector<Moment> moments;
  std::map<std::string, std::string> synced;
  std::string last_operation, last_path;
  bool listed = true;
  std::string newest;
  StepLogWriter* writer = nullptr;
  const auto note = [&] {
    if (last_operation == "sync") synced[last_path] = ReadText(last_path);
    if (last_operation == "create") {
      newest = last_path;
      listed = false;
    }
    if (last_operation == "syncdir") listed = true;
    Moment moment;
    moment.synced = synced;
    moment.listed = listed;
    moment.newest = newest;
    for (const auto& entry : fs::directory_iterator(folder_))
      moment.written[entry.path()] = ReadText(entry.path());
    moment.safe = writer == nullptr ? 10 : writer->synced();
    moment.appended = writer == nullptr ? 10 : writer->appended() + 1;
    moments.push_back(moment);
  };
  const auto owner = Writer(5, 10, 0, [&](const char* operation, const std::string& path) {
    note();
    last_operation = operation;
    last_path = path;
    return 0;
  });
  writer = owner.get();
  for (uint64_t version = 11; version <= 18; ++version) {
    if (version == 15) {
      ASSERT_TRUE(writer->Roll().ok());
    }
    ASSERT_TRUE(Append(writer, version).ok());
    // Groups of one to three steps.
    if (version == 11 || version == 14 || version == 16) {
      ASSERT_TRUE(writer->Sync().ok());
    }
  }
  ASSERT_TRUE(writer->End().ok());
  note();

  SplitMix64 random(1);
  uint64_t longest = 0, cut_off = 0;
  for (int cut = 0; cut < kCuts; ++cut) {
    const Moment& moment = moments[random.Below(moments.size())];
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove(entry.path());
    for (const auto& [path, bytes] : moment.written) {
      if (!moment.listed && path == moment.newest && random.Below(2) == 0) continue;
      const auto sure = moment.synced.find(path);
      WriteText(path, Torn(sure == moment.synced.end() ? "" : sure->second, bytes, &random));
    }

    Result<StepLog> log = Open(5, 10);
    ASSERT_TRUE(log.ok()) << "cut " << cut << ": " << log.status().Format();
    const uint64_t version = 10 + log->steps().size();
    ASSERT_GE(version, moment.safe) << "cut " << cut;
    ASSERT_LE(version, moment.appended) << "cut " << cut;
    if (version > 10) ExpectStep(&*log, log->steps().size() - 1, version);
    longest = std::max(longest, version);
    cut_off += version < moment.appended - 1 ? 1 : 0;
  }
  EXPECT_EQ(longest, 18U);
  EXPECT_GT(cut_off, 100U);
}

TEST_F(StepLogTest, DamageOfASyncedStepIsNamed) {
  const auto writer = Writer(5, 10);
  for (uint64_t version = 11; version <= 14; ++version) {
    ASSERT_TRUE(Append(writer.get(), version).ok());
    ASSERT_TRUE(writer->Sync().ok());
  }
  ASSERT_TRUE(writer->End().ok());
  const std::string whole = ReadText(PathOf(10, 5));
  SplitMix64 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = whole;
    const size_t at = random.Below(whole.size() - sizeof(StepFrame));
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.Below(8)));
    WriteText(PathOf(10, 5), damaged);
    Result<StepLog> log = Open(5, 10);
    // Padding between frames is read by nobody.
    if (log.ok()) {
      ASSERT_EQ(log->steps().size(), 4U) << "byte " << at;
      continue;
    }
    ASSERT_EQ(log.status().id(), ErrorId::kCheckpointBad);
    EXPECT_NE(log.status().where().find(SegmentName(10, 5)), std::string::npos);
    EXPECT_NE(log.status().what().find("step 1"), std::string::npos) << log.status().what();
  }

  WriteText(PathOf(10, 5), whole.substr(0, whole.size() / 2));
  EXPECT_EQ(Open(5, 10)->steps().size(), 1U + (whole.size() / 2 > 2 * whole.size() / 5 ? 1 : 0))
      << "a file that ends is a torn one";
}

TEST_F(StepLogTest, AMissingEndOfASegmentIsNamedWhereAnotherFollows) {
  const auto writer = Writer(5, 10);
  for (uint64_t version = 11; version <= 12; ++version)
    ASSERT_TRUE(Append(writer.get(), version).ok());
  ASSERT_TRUE(writer->Roll().ok());
  ASSERT_TRUE(Append(writer.get(), 13).ok());
  const std::string whole = ReadText(PathOf(10, 5));
  for (const size_t left : {whole.size() - 8, whole.size() / 2, sizeof(StepFrame)}) {
    WriteText(PathOf(10, 5), whole.substr(0, left));
    Result<StepLog> log = Open(5, 10);
    ASSERT_FALSE(log.ok());
    EXPECT_EQ(log.status().id(), ErrorId::kCheckpointBad);
  }
}

TEST_F(StepLogTest, OfAnotherModelItIsRefused) {
  const auto writer = Writer(5, 10);
  ASSERT_TRUE(Append(writer.get(), 11).ok());
  Result<StepLog> log = StepLog::Open(
      {.folder = folder_, .run = 5, .base = 10, .model = kModel + 1, .gradient_bytes = kGradients});
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(log.status().id(), ErrorId::kCheckpointBad);
  EXPECT_NE(log.status().what().find("another model"), std::string::npos);
}

// A run that goes on behind step 12 has its own log; so has one that did not come to its first
// step. Steps that the first run's writer still brings are not theirs.
TEST_F(StepLogTest, ARunThatGoesOnIsFollowed) {
  const auto first = Writer(5, 10);
  for (uint64_t version = 11; version <= 12; ++version)
    ASSERT_TRUE(Append(first.get(), version).ok());
  Writer(6, 12, 5);
  const auto second = Writer(7, 12, 5);
  ASSERT_TRUE(Append(second.get(), 13, 1).ok());
  ASSERT_TRUE(second->Roll().ok());
  ASSERT_TRUE(Append(second.get(), 14, 1).ok());
  const auto third = Writer(8, 14, 7);
  ASSERT_TRUE(Append(first.get(), 13).ok());

  Result<StepLog> log = Open(5, 10);
  ASSERT_TRUE(log.ok()) << log.status().Format();
  ASSERT_EQ(log->steps().size(), 4U);
  ExpectStep(&*log, 1, 12);
  ExpectStep(&*log, 2, 13, 1);
  ExpectStep(&*log, 3, 14, 1);
  EXPECT_EQ(log->run(), 7U);
}

TEST_F(StepLogTest, ACheckpointMakesItsStepsNeedless) {
  Writer(4, 3);
  const auto writer = Writer(5, 10);
  for (uint64_t version = 11; version <= 15; ++version) {
    if (version == 13 || version == 15) {
      ASSERT_TRUE(writer->Roll().ok());
    }
    ASSERT_TRUE(Append(writer.get(), version).ok());
  }
  ASSERT_TRUE(writer->Trim(12).ok());
  EXPECT_FALSE(fs::exists(PathOf(3, 4)));
  EXPECT_FALSE(fs::exists(PathOf(10, 5)));
  EXPECT_EQ(Open(5, 12)->steps().size(), 3U);
}

TEST_F(StepLogTest, FaultsAreNamedAndLeaveWhatWasSynced) {
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    for (const std::string at : {"create", "write", "sync", "syncdir"}) {
      fs::remove_all(folder_);
      bool fails = false;
      const auto writer = Writer(5, 10, 0, [&](const char* operation, const std::string&) {
        return fails && operation == at ? error : 0;
      });
      ASSERT_TRUE(Append(writer.get(), 11).ok());
      ASSERT_TRUE(writer->Sync().ok());
      fails = true;
      Status failed = Append(writer.get(), 12);
      if (failed.ok()) failed = writer->Roll();
      EXPECT_EQ(failed.id(), ErrorId::kSaveFailed) << at;
      EXPECT_NE(failed.what().find(std::strerror(error)), std::string::npos) << failed.what();
      EXPECT_NE(failed.why().find("up to 1"), std::string::npos) << failed.why();
      EXPECT_GE(Open(5, 10)->steps().size(), 1U);
    }
  }
}

TEST_F(StepLogTest, AFolderThatCannotBeMadeIsNamed) {
  WriteText(folder_ + "/file", "");
  const auto writer =
      StepLogWriter::Begin({.folder = folder_ + "/file/x", .run = 1, .base = 0, .model = kModel});
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.status().id(), ErrorId::kSaveFailed);
}

TEST_F(StepLogTest, ACheckpointNamesItsRun) {
  WriteText(folder_ + "/" + kStepLogFile, StepLogText(0xabcdef));
  EXPECT_EQ(StepLogRunOf(folder_), 0xabcdefU);
  WriteText(folder_ + "/" + kStepLogFile, "tidepool-step-log 1\nrun 12\n");
  EXPECT_EQ(StepLogRunOf(folder_), 0U);
  EXPECT_EQ(StepLogRunOf(folder_ + "/none"), 0U);
}

}  // namespace step_log_test
}  // namespace tidepool
