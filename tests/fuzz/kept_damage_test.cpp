// Kept memory that contradicts itself: a job is given up with a reason, whatever in it is wrong;
// its neighbours and the pool stay sound. Each case is a word that fz_kept found, or its like:
// without the check that is named, the server would stop at a broken promise.
#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "base/formats/crc32c.h"
#include "memserver/residency/kept/job_records.h"
#include "optim/undo_tile.h"
#include "shm/spec/encode.h"
#include "tests/fuzz/kept_server.h"

namespace tidepool::memserver {
namespace kept_damage_test {

using optim::Progress;

// The records of an image's first job, on the stage.
struct Records {
  std::byte* bytes = nullptr;
  RecordsLayout layout;
  JobRecord& job() const { return *reinterpret_cast<JobRecord*>(bytes); }
  StagingRecord& staging(Rank rank) const {
    return reinterpret_cast<StagingRecord*>(bytes + layout.staging)[rank];
  }
  ShardRecord& shard(uint32_t row) const {
    return reinterpret_cast<ShardRecord*>(bytes + layout.shards)[row];
  }
  optim::ProgressWord& piece(uint32_t row) const {
    return *reinterpret_cast<optim::ProgressWord*>(bytes + layout.progress +
                                                   row * shm::kProgressBytes);
  }
  uint64_t* extents() const { return reinterpret_cast<uint64_t*>(bytes + layout.extents); }
};

struct Damage {
  std::string name;
  std::string image;
  std::string reason;
  std::function<void(const Records& records)> change;
};

KeptStage& TheStage() {
  static KeptStage stage;
  return stage;
}

const KeptImage& ImageNamed(const std::string& name) {
  for (const KeptImage& image : TheStage().images()) {
    if (image.name == name) return image;
  }
  ADD_FAILURE() << "no image is called " << name;
  return TheStage().images().front();
}

Records FirstRecords(const KeptImage& image) {
  const shm::JobSpec& spec = image.specs.front();
  return {TheStage().pool_bytes().data() + image.jobs.front().records_offset,
          RecordsLayoutOf(spec, shm::Encode(spec).size())};
}

// Jobs that are recovered; the server then works with them and gives everything back.
size_t RecoverAndWork() {
  IndexContents contents;
  auto index = TheStage().AdoptIndex(&contents);
  EXPECT_TRUE(index.ok());
  KeptServer server(TheStage(), std::move(index).value());
  EXPECT_TRUE(server.loop().Recover(contents).ok());
  const size_t recovered = server.loop().tables().jobs.size();
  server.Settle();
  server.ResumeAll();
  for (int step = 0; step < 2; ++step) server.WorkOn();
  server.LoseAll();
  return recovered;
}

std::vector<Damage> Damages() {
  return {
      {"OpenTileAtRest", "plain: at rest", "impossible progress word",
       [](const Records& r) {
         r.piece(0).Store({2, 256, Progress::State::kOpen, 256});
       }},
      {"PieceOfALaterStep", "plain: at rest", "impossible progress word",
       [](const Records& r) {
         r.piece(1).Store({99, 0, Progress::State::kFinished});
       }},
      {"TileBehindTheEnd", "plain: server.step_sealed", "impossible progress word",
       [](const Records& r) {
         r.piece(0).Store({r.job().sealed_version, 99 * 256, Progress::State::kClosed});
       }},
      {"GradientBeforeItsUpdate", "plain: server.step_sealed", "more in it than there can be",
       [](const Records& r) {
         r.shard(0).gradients = GradientWord(OpenStepWord(r.job().sealed_version, 0), 1);
       }},
      {"TooManyMicroBatches", "plain: at rest", "more in it than there can be",
       [](const Records& r) { r.shard(0).gradients = GradientWord(r.job().open_step, 2); }},
      {"WeightsOfALoadedChunkMissing", "plain: server.put_kept", "not all the weights",
       [](const Records& r) { r.shard(0).put_elements = 5; }},
      {"OpenStepOfAnotherVersion", "plain: at rest", "open step is not",
       [](const Records& r) { r.job().open_step = OpenStepWord(r.job().sealed_version + 1, 0); }},
      {"VersionNobodyReaches", "plain: at rest", "impossible",
       [](const Records& r) {
         StepRecord& step = r.job().steps[1];
         step.version = kVersionLimit;
         step.crc = CrcOf(step);
         r.job().sealed_version = kVersionLimit;
       }},
      {"RecordsElsewhere", "plain: at rest", "do not lie where",
       [](const Records& r) {
         std::swap(r.extents()[0], r.extents()[1]);
         r.job().extents_crc = Crc32c(std::as_bytes(std::span(r.extents(), r.job().extent_count)));
         r.job().crc = CrcOf(r.job());
       }},
      {"AdditionsBeyondCounting", "adding: server.gradient_staged",
       "impossible numbers of additions",
       [](const Records& r) { r.staging(0).last_sequence = uint64_t{1} << 60; }},
      {"AdditionNewerThanItsNumber", "adding: optim.tile_written",
       "impossible numbers of additions",
       [](const Records& r) {
         reinterpret_cast<optim::ProgressWord*>(r.staging(0).progress)
             ->Store({999, 0, Progress::State::kFinished});
       }},
      {"AdditionOfAMicroBatchTooMany", "adding: optim.tile_written", "cannot be pending",
       [](const Records& r) {
         for (Rank rank = 0; rank < 2; ++rank) r.staging(rank).micro_batch = 2;
         for (uint32_t row = 0; row < 4; ++row)
           r.shard(row).gradients = GradientWord(r.job().open_step, 2);
       }},
  };
}

class DamagedJob : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedJob, IsGivenUpWithItsReason) {
  const KeptImage& image = ImageNamed(GetParam().image);
  TheStage().Fill(image);
  GetParam().change(FirstRecords(image));
  ::testing::internal::CaptureStderr();
  const size_t recovered = RecoverAndWork();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(recovered, image.jobs.size() - 1);
  EXPECT_THAT(log, ::testing::HasSubstr("a job in kept memory is given up"));
  EXPECT_THAT(log, ::testing::HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(Words, DamagedJob, ::testing::ValuesIn(Damages()),
                         [](const auto& damage) { return damage.param.name; });

TEST(KeptMemory, EveryUndamagedImageIsRecoveredWhole) {
  for (const KeptImage& image : TheStage().images()) {
    SCOPED_TRACE(image.name);
    TheStage().Fill(image);
    EXPECT_EQ(RecoverAndWork(), image.jobs.size());
  }
}

TEST(KeptMemory, TwoSlotsOfOneJobAreOneJob) {
  const KeptImage& image = ImageNamed("plain: at rest");
  TheStage().Fill(image);
  constexpr uint64_t kSlotsAt = 4096, kSlotBytes = 64;  // kept_index.cpp's layout
  const auto slots = TheStage().index_bytes().subspan(kSlotsAt);
  std::copy_n(slots.begin(), kSlotBytes, slots.begin() + 3 * kSlotBytes);
  EXPECT_EQ(RecoverAndWork(), 1U);
}

}  // namespace kept_damage_test
}  // namespace tidepool::memserver
