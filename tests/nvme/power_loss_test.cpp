// Power loss at any instant: what is found afterwards is exactly one committed epoch of each job,
// the last that was told to be durable or the one whose commit was under way.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "nvme/piece.h"
#include "nvme/slot_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/sim_disk.h"
#include "tests/nvme/many_times.h"
#include "tests/nvme/sample_piece.h"

namespace tidepool::nvme {
namespace power_loss_test {

constexpr uint32_t kJobs = 2, kPieces = 2;
constexpr uint64_t kSlotBytes = kPieces * kSampleBytes;
constexpr uint64_t kJobBytes = 2 * kSlotBytes;
constexpr uint64_t kStoreNonce = 99;
constexpr uint64_t kStoreTag = 1000;
constexpr StoreFiles kFiles{.data = 0, .manifests = {1, 2}, .tag = kStoreTag};

// One job that writes epoch after epoch into alternating slots.
struct SimStates {
  uint64_t nonce = 0;
  uint64_t place = 0;
  uint64_t durable = 0;               // told to be committed
  bool asked = false;                 // the commit of durable + 1 was asked for
  uint64_t change = 0;                // of that commit
  uint32_t started = 0, written = 0;  // pieces of durable + 1
};

class PowerWorld {
 public:
  explicit PowerWorld(uint64_t seed)
      : random_(seed),
        disk_(seed * 2 + 1,
              std::vector<uint64_t>{kJobs * kJobBytes, kManifestBytes, kManifestBytes}) {
    Manifest manifest{
        .generation = 0, .store = kStoreNonce, .capacity = kJobs * kJobBytes, .entries = {}};
    Open(std::move(manifest));
    for (uint32_t i = 0; i < kJobs; ++i) {
      jobs_[i].nonce = 10 + i;
      jobs_[i].place = store_->Reserve(jobs_[i].nonce, kJobBytes).value();
      for (uint32_t piece = 0; piece < kPieces; ++piece) {
        StartWrite(i, 0, piece);
        RunUntilIdle();
      }
      store_->Commit(jobs_[i].nonce, 0);
    }
    while (store_->dirty()) Turn();
    for (SimStates& job : jobs_) job.written = job.started = 0;
    disk_.Pace(3);
  }

  void ArmSyncErrors() { disk_.Arm(DiskFault::kSyncError, 30); }

  // Trains on for some turns, then the power goes. Empty, or what was wrong with what was found.
  std::string LiveAndDie() {
    for (uint64_t turns = random_.Below(40); turns > 0; --turns) {
      for (uint32_t i = 0; i < kJobs; ++i) GoOn(i);
      Turn();
    }
    disk_.LosePower();
    return Recover();
  }
  uint64_t epochs() const { return epochs_; }
  uint64_t rolled_forward() const { return rolled_forward_; }
  uint64_t poisoned() const { return poisoned_; }

 private:
  void Open(Manifest manifest) {
    transfers_ = std::make_unique<TransferQueue>(&disk_, &clock_, TransferOptions{8, kPageBytes});
    store_ = std::make_unique<SlotStore>(std::move(manifest), kFiles, transfers_.get(),
                                         manifest_buffer_);
  }
  PieceName NameOf(const SimStates& job, uint64_t epoch, uint32_t piece) const {
    const uint64_t place = job.place + epoch % 2 * kSlotBytes + piece * kSampleBytes;
    return {.store = kStoreNonce,
            .job = job.nonce,
            .chunk = 0,
            .piece = piece,
            .epoch = epoch,
            .place = place};
  }
  std::byte* BufferOf(uint32_t job, uint32_t piece) {
    return buffers_.data() + (job * kPieces + piece) * kSampleBytes;
  }
  void StartWrite(uint32_t job, uint64_t epoch, uint32_t piece) {
    const PieceName name = NameOf(jobs_[job], epoch, piece);
    FillSample(name, BufferOf(job, piece));
    transfers_->Start({IoKind::kWrite, 0, name.place, BufferOf(job, piece), kSampleBytes, job});
  }
  void GoOn(uint32_t index) {
    SimStates& job = jobs_[index];
    if (job.asked) {
      if (store_->poisoned() || store_->durable_changes() < job.change) return;
      ++job.durable;
      ++epochs_;
      job.asked = false;
      job.started = job.written = 0;
    }
    while (job.started < kPieces && transfers_->HasRoom() && random_.Below(2) == 0)
      StartWrite(index, job.durable + 1, job.started++);
    if (job.written < kPieces) return;
    store_->Commit(job.nonce, job.durable + 1);
    job.change = store_->changes();
    job.asked = true;
  }
  void Turn() {
    store_->Progress();
    transfers_->Progress();
    clock_.Advance(kNsPerMs);
    TransferDone done;
    while (transfers_->Next(&done)) {
      if (done.tag == kStoreTag) {
        store_->End(done);
      } else {
        TP_CHECK(done.error == 0, "writes do not fail here");
        ++jobs_[done.tag].written;
      }
    }
  }
  void RunUntilIdle() {
    while (transfers_->in_flight() > 0) Turn();
  }

  std::string Recover() {
    poisoned_ += store_->poisoned() ? 1 : 0;
    Manifest newest;
    bool found = false;
    for (uint32_t file = 1; file <= 2; ++file) {
      auto read = DecodeManifest(disk_.bytes(file));
      if (!read.ok() || (found && read->generation < newest.generation)) continue;
      newest = std::move(read).value();
      found = true;
    }
    if (!found) return "no manifest is whole";
    for (SimStates& job : jobs_) {
      const ManifestEntry* entry = newest.Find(job.nonce);
      if (entry == nullptr || entry->has_epoch == 0 || entry->offset != job.place)
        return "a job is gone";
      const bool forward = job.asked && entry->epoch == job.durable + 1;
      if (entry->epoch != job.durable && !forward) {
        return "epoch " + std::to_string(entry->epoch) + " instead of " +
               std::to_string(job.durable);
      }
      for (uint32_t piece = 0; piece < kPieces; ++piece) {
        const PieceName name = NameOf(job, entry->epoch, piece);
        std::vector<std::byte> expected(kSampleBytes);
        FillSample(name, expected.data());
        const std::byte* found_bytes = disk_.bytes(0).data() + name.place;
        if (!VerifySample(name, found_bytes)) return "a piece of a committed epoch is not whole";
        if (std::memcmp(found_bytes, expected.data(), kSampleBytes) != 0)
          return "a piece has other bytes";
      }
      rolled_forward_ += forward ? 1 : 0;
      job = {.nonce = job.nonce, .place = job.place, .durable = entry->epoch};
    }
    Open(std::move(newest));
    return "";
  }

  SplitMix64 random_;
  FakeClock clock_;
  SimDisk disk_;
  std::unique_ptr<TransferQueue> transfers_;
  std::unique_ptr<SlotStore> store_;
  SimStates jobs_[kJobs];
  std::vector<std::byte> buffers_ = std::vector<std::byte>(kJobs * kPieces * kSampleBytes);
  std::vector<std::byte> manifest_buffer_ = std::vector<std::byte>(kManifestBytes);
  uint64_t epochs_ = 0, rolled_forward_ = 0, poisoned_ = 0;
};

TEST(PowerLoss, ExactlyOneCommittedEpochIsFoundAfterEach) {
  const uint64_t losses = ManyTimes(50'000);
  PowerWorld world(SeedOr(7));
  for (uint64_t i = 0; i < losses; ++i) {
    const std::string wrong = world.LiveAndDie();
    ASSERT_EQ(wrong, "") << "at loss " << i;
  }
  EXPECT_GT(world.epochs(), losses / 20) << "commits come through";
  EXPECT_GT(world.rolled_forward(), losses / 500) << "some losses fall into a commit";
}

TEST(PowerLoss, AFailedFlushCommitsNothing) {
  const uint64_t losses = ManyTimes(5'000);
  PowerWorld world(SeedOr(8));
  world.ArmSyncErrors();
  for (uint64_t i = 0; i < losses; ++i) {
    const std::string wrong = world.LiveAndDie();
    ASSERT_EQ(wrong, "") << "at loss " << i;
  }
  EXPECT_GT(world.poisoned(), losses / 50);
}

}  // namespace power_loss_test
}  // namespace tidepool::nvme
