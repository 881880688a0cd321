#include "memserver/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/formats/safetensors.h"
#include "base/formats/split_float.h"
#include "memserver/checkpoint/weights_file.h"
#include "tests/fakes/silent_files.h"
#include "tests/not_run.h"

namespace tidepool::memserver {
namespace checkpoint_writer_test {

namespace fs = std::filesystem;

// Every look at it costs one millisecond.
class TickingClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ += kNsPerMs; }
  void SleepNs(int64_t duration_ns) override { now_ += duration_ns; }

 private:
  mutable int64_t now_ = 0;
};

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() {
    std::string pattern = (fs::temp_directory_path() / "tidepool-checkpoint-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    weights_.resize(3 << 20);  // 12 MiB: several pieces
    std::iota(weights_.begin(), weights_.end(), 0.5f);
  }
  ~Checkpoint() override { fs::remove_all(directory_); }

  static UniqueFd Open(const std::string& directory) {
    return UniqueFd(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  SaveRequest Request(const std::string& name, float first = 0.5f) {
    if (weights_[0] != first) weights_[0] = first;  // no write where the writer may read
    SaveRequest request;
    request.connection = 9;
    request.directory = Open(directory_);
    request.name = name;
    const uint64_t half = weights_.size() / 2;
    request.tensors = {
        {.name = "a", .dims = {half / 16, 16}, .data = weights_.data(), .count = half},
        {.name = "b", .dims = {half}, .data = weights_.data() + half, .count = half}};
    request.metadata = {{"format", "pt"}, {"version", "12"}};
    return request;
  }

  Status Write(const SaveRequest& request) {
    return WriteWeightsFile(request, {.clock = &clock_, .deadline_ns = INT64_MAX});
  }

  std::vector<char> Contents(const std::string& name) const {
    std::vector<char> bytes(fs::file_size(directory_ / name));
    std::ifstream(directory_ / name, std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_))
      names.push_back(entry.path().filename());
    return names;
  }

  // It outlives a save that was given up, whose thread still looks at it.
  static inline SteadyClock clock_;
  fs::path directory_;
  std::vector<float> weights_;
};

TEST_F(Checkpoint, TheFileHoldsTheTensorsAndNothingElseIsLeft) {
  const Status status = Write(Request("model.safetensors"));
  ASSERT_TRUE(status.ok()) << status.Format();
  EXPECT_EQ(Files(), std::vector<std::string>{"model.safetensors"});
  const std::vector<char> file = Contents("model.safetensors");
  uint64_t data_begin = 0;
  auto header = DecodeSafetensors(std::as_bytes(std::span(file)), &data_begin);
  ASSERT_TRUE(header.ok()) << header.status().Format();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].shape[1], 16u);
  EXPECT_EQ(header->metadata[1].second, "12");
  EXPECT_EQ(std::memcmp(file.data() + data_begin, weights_.data(), weights_.size() * sizeof(float)),
            0);
}

TEST_F(Checkpoint, ASplitMasterIsSavedAsTheFloatsThatItStandsFor) {
  ASSERT_TRUE(Write(Request("whole")).ok());
  std::vector<uint16_t> high(weights_.size());
  std::vector<int16_t> rest(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    const SplitFloat halves = Split(weights_[i]);
    high[i] = halves.high;
    rest[i] = halves.rest;
  }
  SaveRequest request = Request("split");
  uint64_t begin = 0;
  for (SavedTensor& tensor : request.tensors) {
    tensor.data = nullptr;
    tensor.high = high.data() + begin;
    tensor.rest = rest.data() + begin;
    begin += tensor.count;
  }
  ASSERT_TRUE(Write(request).ok());
  EXPECT_EQ(Contents("split"), Contents("whole"));
}

TEST_F(Checkpoint, TheFileIsReadableAsTheUmaskAllows) {
  const mode_t former = umask(022);
  ASSERT_TRUE(Write(Request("m")).ok());
  umask(former);
  struct stat file {};
  ASSERT_EQ(stat((directory_ / "m").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0644u);
}

TEST_F(Checkpoint, ASecondSaveReplacesTheFirst) {
  ASSERT_TRUE(Write(Request("m", 1)).ok());
  const std::vector<char> first = Contents("m");
  ASSERT_TRUE(Write(Request("m", 2)).ok());
  EXPECT_NE(first, Contents("m"));
  EXPECT_EQ(Files().size(), 1u);
}

// The limit of this process on file sizes, put back at the end: a full disk without a disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &former_);
    rlimit limit = former_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &former_); }

 private:
  rlimit former_{};
};

TEST_F(Checkpoint, WithoutSpaceTheFormerFileStaysWhole) {
  ASSERT_TRUE(Write(Request("m", 1)).ok());
  const std::vector<char> former = Contents("m");
  Status status;
  {
    const FileSizeLimit limit(5 << 20);
    status = Write(Request("m", 2));
  }
  ASSERT_EQ(status.id(), ErrorId::kSaveFailed);
  EXPECT_NE(status.Format().find("File too large"), std::string::npos) << status.Format();
  EXPECT_NE(status.Format().find("free"), std::string::npos);
  EXPECT_NE(status.Format().find(directory_.string()), std::string::npos);
  EXPECT_EQ(Contents("m"), former);
  EXPECT_EQ(Files().size(), 1u) << "the temporary file was not removed";
}

TEST_F(Checkpoint, AfterItsDeadlineASaveIsGivenUp) {
  ASSERT_TRUE(Write(Request("m", 1)).ok());
  const std::vector<char> former = Contents("m");
  TickingClock ticking;
  const Status status =
      WriteWeightsFile(Request("m", 2), {.clock = &ticking, .deadline_ns = 3 * kNsPerMs});
  ASSERT_EQ(status.id(), ErrorId::kSaveFailed);
  EXPECT_NE(status.Format().find("time allowed"), std::string::npos) << status.Format();
  EXPECT_EQ(Contents("m"), former);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(Checkpoint, OnlyOnePlainFileNameIsTaken) {
  for (const std::string name : {"", ".", "..", "a/b", "/etc/x", "../x", "tab\there", "nul"}) {
    const std::string used = name == "nul" ? std::string("a\0b", 3) : name;
    const Status status = Write(Request(used));
    EXPECT_EQ(status.id(), ErrorId::kSaveFailed) << name;
  }
  EXPECT_EQ(Write(Request(std::string(kSaveNameMax + 1, 'x'))).id(), ErrorId::kSaveFailed);
  EXPECT_TRUE(Files().empty());
  EXPECT_TRUE(Write(Request(std::string(kSaveNameMax, 'x'))).ok());
}

TEST_F(Checkpoint, ALinkUnderTheNameIsReplacedNotFollowed) {
  const fs::path target = directory_ / "precious";
  std::ofstream(target) << "keep me";
  fs::create_symlink(target, directory_ / "m");
  ASSERT_TRUE(Write(Request("m")).ok());
  EXPECT_FALSE(fs::is_symlink(directory_ / "m"));
  EXPECT_EQ(fs::file_size(target), 7u);
}

TEST_F(Checkpoint, ADescriptorThatIsNoDirectoryIsAnError) {
  SaveRequest request = Request("m");
  std::ofstream(directory_ / "file") << "x";
  request.directory = UniqueFd(open((directory_ / "file").c_str(), O_PATH | O_CLOEXEC));
  EXPECT_EQ(Write(request).id(), ErrorId::kSaveFailed);
  request.directory = UniqueFd();
  EXPECT_EQ(Write(request).id(), ErrorId::kSaveFailed);
}

TEST_F(Checkpoint, ADirectoryInTheWayIsAnErrorAndLeavesNothing) {
  fs::create_directory(directory_ / "m");
  std::ofstream(directory_ / "m" / "inside") << "x";
  EXPECT_EQ(Write(Request("m")).id(), ErrorId::kSaveFailed);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(Checkpoint, AShapeThatDoesNotFitItsDataIsRefused) {
  SaveRequest request = Request("m");
  request.tensors[0].dims = {7};
  EXPECT_EQ(Write(request).id(), ErrorId::kSaveFailed);
  request = Request("m");
  request.tensors[1].name = "a";
  EXPECT_EQ(Write(request).id(), ErrorId::kSaveFailed);
  EXPECT_TRUE(Files().empty());
}

SaveResult AwaitResult(EventQueue<SaveResult>* results, std::vector<SaveResult>* seen) {
  std::vector<SaveResult> batch;
  while (seen->empty()) {
    pollfd event{results->event_fd(), POLLIN, 0};
    if (poll(&event, 1, 30'000) != 1) {
      ADD_FAILURE() << "no result";
      return {};
    }
    results->ClearEvent();
    results->TakeAll(&batch);
    for (SaveResult& each : batch) seen->push_back(std::move(each));
  }
  SaveResult first = std::move(seen->front());
  seen->erase(seen->begin());
  return first;
}

TEST_F(Checkpoint, TheWriterAnswersEachRequest) {
  EventQueue<SaveRequest> requests;
  EventQueue<SaveResult> results;
  CheckpointWriter writer(&requests, &results, &clock_);
  std::vector<SaveResult> seen;
  for (uint64_t i = 1; i <= 3; ++i) {
    SaveRequest request = Request(i == 2 ? "bad/name" : "m" + std::to_string(i));
    request.connection = i;
    requests.Push(std::move(request));
  }
  std::set<ConnectionId> answered;
  for (uint64_t i = 1; i <= 3; ++i) {
    const SaveResult result = AwaitResult(&results, &seen);
    answered.insert(result.connection);
    EXPECT_EQ(result.result.ok(), result.connection != 2) << result.result.Format();
  }
  EXPECT_EQ(answered, (std::set<ConnectionId>{1, 2, 3}));
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(Checkpoint, EveryRequestIsAnsweredAlsoWhenTheWriterEnds) {
  EventQueue<SaveRequest> requests;
  EventQueue<SaveResult> results;
  constexpr size_t kSaves = 20;
  {
    CheckpointWriter writer(&requests, &results, &clock_);
    for (size_t i = 0; i < kSaves; ++i) requests.Push(Request("m" + std::to_string(i)));
  }
  std::vector<SaveResult> seen;
  results.TakeAll(&seen);
  ASSERT_EQ(seen.size(), kSaves);
  size_t written = 0;
  for (const SaveResult& each : seen) {
    written += each.result.ok() ? 1 : 0;
    EXPECT_TRUE(each.result.ok() || each.result.id() == ErrorId::kSaveFailed);
  }
  EXPECT_EQ(Files().size(), written) << "a half-written file was left";
}

// A read of weights that takes as long as a test says.
class HeldRead {
 public:
  std::function<Status(uint64_t, std::span<float>)> Reader() {
    return [this](uint64_t, std::span<float> values) {
      std::fill(values.begin(), values.end(), 1.0f);
      begun_.count_down();
      may_end_.wait();
      return Status();
    };
  }
  void WaitUntilBegun() { begun_.wait(); }
  void End() { may_end_.count_down(); }

 private:
  std::latch begun_{1}, may_end_{1};
};

TEST_F(Checkpoint, ASaveThatTakesLongHoldsUpNoOther) {
  HeldRead held;
  EventQueue<SaveRequest> requests;
  EventQueue<SaveResult> results;
  const CheckpointWriter writer(&requests, &results, &clock_);
  SaveRequest slow = Request("slow");
  slow.connection = 1;
  slow.tensors = {{.name = "a", .dims = {16}, .count = 16, .read = held.Reader()}};
  requests.Push(std::move(slow));
  held.WaitUntilBegun();

  std::vector<SaveResult> seen;
  for (uint64_t i = 2; i <= 4; ++i) {
    SaveRequest other = Request("other" + std::to_string(i));
    other.connection = i;
    requests.Push(std::move(other));
    const SaveResult result = AwaitResult(&results, &seen);
    EXPECT_EQ(result.connection, i);
    EXPECT_TRUE(result.result.ok()) << result.result.Format();
  }
  held.End();
  const SaveResult last = AwaitResult(&results, &seen);
  EXPECT_EQ(last.connection, 1U);
  EXPECT_TRUE(last.result.ok()) << last.result.Format();
}

TEST_F(Checkpoint, AFileSystemThatNeverAnswersIsGivenUpAndTheNextSaveGoesOn) {
  auto silent = std::make_unique<testing::SilentFiles>(getuid());
  if (!silent->missing().empty()) return testing::NotRun(silent->missing());
  EventQueue<SaveRequest> requests;
  EventQueue<SaveResult> results;
  const CheckpointWriter writer(&requests, &results, &clock_, 2 * kNsPerSecond);
  SaveRequest hangs = Request("hangs");
  hangs.directory = Open(silent->directory());
  requests.Push(std::move(hangs));
  std::vector<SaveResult> seen;
  const Status given_up = AwaitResult(&results, &seen).result;
  EXPECT_EQ(given_up.id(), ErrorId::kSaveFailed);
  EXPECT_NE(given_up.what().find("has not answered"), std::string::npos) << given_up.Format();
  EXPECT_EQ(silent->unanswered(), 1U);

  SaveRequest next = Request("next");
  for (SavedTensor& tensor : next.tensors) tensor.count = 16, tensor.dims = {16};
  requests.Push(std::move(next));
  const Status written = AwaitResult(&results, &seen).result;
  EXPECT_TRUE(written.ok()) << written.Format();
}

// The planes may be another job's by then, of another user too.
TEST_F(Checkpoint, WhatIsWrittenBehindTheEndOfASaveIsNotReadFromThePool) {
  auto silent = std::make_unique<testing::SilentFiles>(getuid());
  if (!silent->missing().empty()) return testing::NotRun(silent->missing());
  constexpr float kOfOthers = -1;
  std::atomic<uint64_t> writes{0}, of_others{0};
  silent->OnWrite([&](std::span<const std::byte> content) {
    std::vector<float> values(content.size() / sizeof(float));
    std::memcpy(values.data(), content.data(), values.size() * sizeof(float));
    of_others += static_cast<uint64_t>(std::count(values.begin(), values.end(), kOfOthers));
    ++writes;
  });
  silent->HoldWritesBehind(1);  // the header's
  EventQueue<SaveRequest> requests;
  EventQueue<SaveResult> results;
  const CheckpointWriter writer(&requests, &results, &clock_, 2 * kNsPerSecond);
  SaveRequest hangs = Request("hangs");
  hangs.directory = Open(silent->directory());
  requests.Push(std::move(hangs));
  std::vector<SaveResult> seen;
  EXPECT_EQ(AwaitResult(&results, &seen).result.id(), ErrorId::kSaveFailed);
  ASSERT_EQ(silent->unanswered(), 1U);

  std::fill(weights_.begin(), weights_.end(), kOfOthers);
  const uint64_t before = writes;
  silent->AnswerWrites();
  const int64_t end = clock_.NowNs() + 60 * kNsPerSecond;
  while (silent->unanswered() < 2 && clock_.NowNs() < end) clock_.SleepNs(kNsPerMs);
  EXPECT_EQ(silent->unanswered(), 2U) << "the thread goes on, and closes its file";
  EXPECT_GT(writes, before) << "the rest of the piece";
  EXPECT_EQ(of_others, 0U);
}

}  // namespace checkpoint_writer_test
}  // namespace tidepool::memserver
