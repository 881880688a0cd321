// A kill at every instruction of the changes of kept records that take several stores: the memory
// as each instruction leaves it is read as the next server reads it, and must be one of the states
// that are allowed.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "memserver/residency/job_states.h"
#include "memserver/update/seal.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_trainer.h"
#include "tests/fuzz/kept_server.h"
#include "tests/optim/single_step.h"

namespace tidepool::memserver {
namespace kept_step_test {

// Memory as it was before an action, and after each instruction of it that changed some of it.
class Film {
 public:
  explicit Film(std::span<std::byte> memory)
      : memory_(memory), last_(memory.begin(), memory.end()), first_(last_) {
    changes_.reserve(size_t{1} << 20);
    ends_.reserve(size_t{1} << 16);
  }

  // One instruction of `action` at a time; how many there were.
  uint64_t Shoot(const std::function<void()>& action) {
    action_ = &action;
    const uint64_t instructions =
        optim::SingleStep([](void* self) { (*static_cast<Film*>(self)->action_)(); },
                          [](void* self) { static_cast<Film*>(self)->Look(); }, this);
    Look();
    return instructions;
  }

  // Calls `check` for each frame, with the memory in `screen`; how many there were.
  size_t Show(std::span<std::byte> screen, const std::function<void()>& check) const {
    std::vector<std::byte> frame = first_;
    size_t at = 0;
    for (size_t i = 0; i <= ends_.size(); ++i) {
      std::memcpy(screen.data(), frame.data(), frame.size());
      check();
      if (i == ends_.size()) break;
      for (; at < ends_[i]; ++at)
        std::memcpy(frame.data() + changes_[at].offset, &changes_[at].word, sizeof(uint64_t));
    }
    return ends_.size() + 1;
  }

 private:
  struct Change {
    uint64_t offset, word;
  };

  // In a signal handler: allocates nothing.
  void Look() {
    const size_t before = changes_.size();
    for (uint64_t page = 0; page < memory_.size(); page += kPageBytes) {
      if (std::memcmp(last_.data() + page, memory_.data() + page, kPageBytes) == 0) continue;
      for (uint64_t offset = page; offset < page + kPageBytes; offset += sizeof(uint64_t)) {
        Change change{offset, 0};
        std::memcpy(&change.word, memory_.data() + offset, sizeof change.word);
        if (std::memcmp(last_.data() + offset, &change.word, sizeof change.word) == 0) continue;
        TP_CHECK(changes_.size() < changes_.capacity(), "the film is long enough");
        changes_.push_back(change);
        std::memcpy(last_.data() + offset, &change.word, sizeof change.word);
      }
    }
    if (changes_.size() == before) return;
    TP_CHECK(ends_.size() < ends_.capacity(), "the film is long enough");
    ends_.push_back(changes_.size());
  }

  const std::span<std::byte> memory_;
  std::vector<std::byte> last_;
  const std::vector<std::byte> first_;
  std::vector<Change> changes_;
  std::vector<size_t> ends_;  // of the frames, in changes_
  const std::function<void()>* action_ = nullptr;
};

std::unique_ptr<HostPool> SmallPool(uint64_t bytes) {
  HostPoolOptions options;
  options.bytes = bytes;
  options.own_bytes = kPageBytes;
  options.touch_threads = 1;
  return HostPool::Reserve(options, {uint64_t{1} << 40, uint64_t{1} << 40, "the test"}).value();
}

std::span<std::byte> AllOf(const HostPool& pool) {
  return {pool.own_records().data(), pool.pieces().front().bytes};
}

// A job in one pool, and a second pool that the next server finds.
class KeptSteps : public ::testing::Test {
 protected:
  KeptSteps()
      : spec_(std::make_shared<shm::JobSpec>(MakeSpec({.dtype = DType::kBF16}))),
        pool_(SmallPool(shm::StateBytesOf(*spec_).total() + 16 * kPageBytes)),
        found_(SmallPool(pool_->total_bytes())),
        states_(JobStates::Create(spec_, pool_.get()).value()) {}

  void Begin() {
    states_->WriteFirstRecords({1, 7, 42, 1000});
    for (Chunk& chunk : states_->chunks()) states_->table().MarkLoaded(&chunk);
  }

  // In the pool that is found.
  template <typename T>
  T& Found(const T& record) const {
    return *reinterpret_cast<T*>(AllOf(*found_).data() + pool_->OffsetOf(&record));
  }
  Result<KeptJob> Read() const {
    const Extent& records = states_->extents().front();
    return ReadJobRecords(found_->Look(records.offset, records.bytes),
                          {.slot = 0,
                           .job = 1,
                           .nonce = 7,
                           .records_offset = records.offset,
                           .records_bytes = records.bytes});
  }

  // Every frame of `action`: what of it a next server cannot take up, or `legal` does not allow, is
  // counted.
  void ExpectLegal(const std::function<void()>& action,
                   const std::function<bool(JobStates& found)>& legal) {
    Film film(AllOf(*pool_));
    EXPECT_GT(film.Shoot(action), 10U);
    size_t wrong = 0;
    const size_t frames = film.Show(AllOf(*found_), [&] {
      Result<KeptJob> kept = Read();
      if (!kept.ok()) {
        ++wrong;
        return;
      }
      auto found = JobStates::Recover(*kept, found_.get());
      if (!found.ok() || !legal(**found)) ++wrong;
    });
    EXPECT_GT(frames, 2U);
    EXPECT_EQ(wrong, 0U) << "of " << frames;
  }

  const std::shared_ptr<const shm::JobSpec> spec_;
  const std::unique_ptr<HostPool> pool_, found_;
  const std::unique_ptr<JobStates> states_;
};

// The index names them when they are written; they themselves are whole from the magic on.
TEST_F(KeptSteps, FirstRecordsAreReadWhenTheyAreWholeAndNeverBefore) {
  Film film(AllOf(*pool_));
  film.Shoot([this] { states_->WriteFirstRecords({1, 7, 42, 1000}); });
  size_t read = 0, wrong = 0;
  const size_t frames = film.Show(AllOf(*found_), [&] {
    Result<KeptJob> kept = Read();
    if (!kept.ok()) {
      wrong += read;
      return;
    }
    ++read;
    auto found = JobStates::Recover(*kept, found_.get());
    if (!found.ok() || kept->sealed_version != 0 || (*found)->table().loaded() != 0) ++wrong;
  });
  EXPECT_GT(frames, 20U);
  EXPECT_EQ(read, 1U) << "of " << frames;
  EXPECT_EQ(wrong, 0U);
}

TEST_F(KeptSteps, ARankIsNobodyOrWholeAndStaysWhoItIs) {
  Begin();
  const std::array<RankIdentity, 2> identities{{{11, 21, 31}, {12, 22, 32}}};
  const auto is_whole = [&](JobStates&) {
    const RankRecord& rank = Found(states_->record().ranks[0]);
    const uint64_t nonce = rank.nonce.load();
    bool whole = nonce == 0;
    for (const auto& each : identities) {
      whole |=
          nonce == each.nonce && rank.process_start == each.process_start && rank.pid == each.pid;
    }
    return whole;
  };
  for (const auto& identity : identities)
    ExpectLegal([&] { states_->records().SetRank(0, identity); }, is_whole);

  Film film(AllOf(*pool_));
  film.Shoot([&] { states_->records().SetRank(0, identities[1]); });
  EXPECT_EQ(film.Show(AllOf(*found_), [] {}), 1U) << "one that comes back is known all the time";
}

TEST_F(KeptSteps, AStepIsSealedWithItsWholeRecordOrNotAtAll) {
  Begin();
  Version least = 0;
  for (Version version = 1; version <= 2; ++version) {
    for (Chunk& chunk : states_->chunks()) chunk.state = ChunkState::kComplete;
    for (double& sum : states_->norm_sums()) sum = 2.5 * static_cast<double>(version);
    const StepRecord before = states_->last_step();
    shm::EndStepRequest end{};
    end.learning_rate = 0.25F;
    end.loss_scale = 1;
    end.data_cursor = 5 + version;
    StepRecord step = JudgeStep(*states_, end, true);
    step.crc = CrcOf(step);
    ExpectLegal([&] { SealStep(states_.get(), step); },
                [&](JobStates& found) {
                  const Version sealed = found.sealed_version();
                  const StepRecord& expected = sealed == version ? step : before;
                  const bool grows = sealed >= least && sealed + 1 >= version && sealed <= version;
                  least = sealed;
                  return grows && std::memcmp(&found.last_step(), &expected, sizeof expected) == 0;
                });
    EXPECT_EQ(least, version);
    for (Chunk& chunk : states_->chunks()) states_->table().Publish(&chunk, version);
  }
}

// The slot that is written belongs to the step before the last one, so nothing of it counts before
// the step is sealed.
TEST_F(KeptSteps, AStepIsSealedWithItsWholeSlotOrWithTheOneBefore) {
  Begin();
  std::vector<uint32_t> before;
  for (Version version = 1; version <= 4; ++version) {
    for (Chunk& chunk : states_->chunks()) chunk.state = ChunkState::kComplete;
    shm::EndStepRequest end{};
    end.loss_scale = 1;
    StepRecord step = JudgeStep(*states_, end, true);
    step.crc = CrcOf(step);
    // The first step says nothing, the last one nothing new.
    StepSaid said;
    if (version == 2 || version == 3) said.untouched = {version};
    if (version == 3) {
      said.groups = 2;
      said.numbers = {{}, NumbersOf(spec_->optimizer, 0.25F, 0.5F)};
    }

    std::vector<uint32_t> after(version == 1 ? 0 : spec_->parameters.size());
    for (size_t i = 0; i < after.size(); ++i) {
      const uint32_t missed = before.empty() ? 0 : StepsMissed(before[i]);
      const bool alone = !said.untouched.empty() && (said.untouched[0] >> i & 1) != 0;
      after[i] = alone ? kLeftAlone | (missed + 1) : missed;
    }
    ExpectLegal([&] { SealStep(states_.get(), step, said); },
                [&](JobStates& found) {
                  const bool sealed = found.sealed_version() == version;
                  const auto view = found.records().slots().Of(found.sealed_version());
                  const std::vector<uint32_t>& words = sealed ? after : before;
                  if (words.empty()) return !view.has_value();
                  if (!view || !std::equal(words.begin(), words.end(), view->words.begin(),
                                           view->words.end()))
                    return false;
                  const bool numbers = sealed ? version == 3 : version == 4;
                  return view->groups == (numbers ? 2U : 0U);
                });
    before = after;
    for (Chunk& chunk : states_->chunks()) states_->table().Publish(&chunk, version);
  }
}

// Each bit of a slot that counts, and of the word that says so.
TEST_F(KeptSteps, DamageToASlotIsNoticed) {
  Begin();
  for (Version version = 1; version <= 2; ++version) {
    for (Chunk& chunk : states_->chunks()) chunk.state = ChunkState::kComplete;
    shm::EndStepRequest end{};
    end.loss_scale = 1;
    SealStep(states_.get(), JudgeStep(*states_, end, true), {.untouched = {5}});
    for (Chunk& chunk : states_->chunks()) states_->table().Publish(&chunk, version);
  }
  std::memcpy(AllOf(*found_).data(), AllOf(*pool_).data(), AllOf(*pool_).size());
  ASSERT_TRUE(Read().ok());

  const uint64_t slot_bytes =
      shm::StepSlotBytes(spec_->parameter_groups.size(), spec_->parameters.size());
  const auto* words = states_->records().slots().Of(2)->words.data();
  const auto* slot_end = reinterpret_cast<const std::byte*>(words + spec_->parameters.size());
  auto* const end = &Found(*slot_end);
  const auto damage = [&](std::byte* at, size_t bytes) {
    for (size_t bit = 0; bit < bytes * 8; ++bit) {
      at[bit / 8] ^= std::byte{1} << bit % 8;
      EXPECT_EQ(Read().status().id(), ErrorId::kKeptMemoryBad) << bit;
      at[bit / 8] ^= std::byte{1} << bit % 8;
    }
  };
  damage(end - slot_bytes, slot_bytes);
  auto* const from = reinterpret_cast<std::byte*>(&Found(states_->record().slotted_from));
  damage(from, sizeof(uint64_t));
  EXPECT_TRUE(Read().ok());
}

TEST_F(KeptSteps, AStandInIsFoundWithItsWholePieceOrNotAtAll) {
  Begin();
  FallbackSlots fallback_slots(spec_.get(), pool_.get());
  SplitMix64 random(9);
  std::array<std::vector<std::byte>, 2> images;
  for (auto& image : images) {
    image.resize(fallback_slots.BytesFor(0, 0) - kPageBytes);
    for (std::byte& byte : image) byte = static_cast<std::byte>(random.Next());
  }
  ChunkRecord* const record = states_->chunk(0).record;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    size_t there = slot;
    ExpectLegal(
        [&] {
          EXPECT_TRUE(fallback_slots.Add({0, 0, slot, 5, {}}, images[slot], record));
        },
        [&](JobStates&) {
          FallbackSlots found(spec_.get(), found_.get());
          if (!found.Recover(0, Found(*record)).ok()) return false;
          const bool grows = found.all().size() >= there && found.all().size() <= slot + 1;
          there = found.all().size();
          bool whole = true;
          for (const FallbackSlot& each : found.all()) {
            const std::vector<std::byte>& image = images[each.slot];
            whole &= each.error == 5 && std::memcmp(each.image(), image.data(), image.size()) == 0;
          }
          return grows && whole;
        });
    EXPECT_EQ(there, slot + 1);
  }
}

TEST_F(KeptSteps, AJobHasMovedOutWithAllChunksOrWithNone) {
  Begin();
  const MovePlan plan = PlanMove(*spec_, 2, {kGiB, kGiB}).value();
  bool moved = false;
  ExpectLegal(
      [&] {
        states_->MoveOut(plan, {0, 0});
      },
      [&](JobStates& found) {
        const bool now = found.demoted() == 2;
        bool legal = now || (!moved && found.demoted() == 0);
        for (const Chunk& chunk : found.chunks()) {
          legal &= now == chunk.spilled && now == (chunk.planes.master == nullptr);
          legal &=
              !now || chunk.spill.directory ==
                          plan.directories[static_cast<size_t>(&chunk - found.chunks().data())];
        }
        moved = now;
        return legal;
      });
  EXPECT_TRUE(moved);
}

// A gradient that is added to another counts once and whole, from whatever instruction of its turn
// the next server goes on.
TEST(KeptTurns, AStagedGradientIsAddedOnceAndWhole) {
  KeptStage stage;
  ServeWorld world({.pool_bytes = kImagePoolBytes,
                    .loop = {.times = {.lease_ns = kNsPerSecond}, .rcache_limit = 64 * kMiB}});
  SmallTrainer trainer(&world, MakeSpec({.chunks = 1, .chunk_elements = 64, .micro_batches = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  FakeRank& rank = trainer.rank(0);
  const auto submit = [&](uint32_t micro_batch) {
    for (uint64_t i = 0; i < 64; ++i)
      rank.At<float>(0)[i] = static_cast<float>(i + 100 * micro_batch);
    rank.Submit({0, 0, 64, 0, 0, micro_batch});
    world.Settle();
  };
  submit(0);
  KeptImage image;
  image.index.resize(kIndexBytes);
  ASSERT_EQ(pread(world.index().fd(), image.index.data(), kIndexBytes, 0),
            static_cast<ssize_t>(kIndexBytes));

  Film film(AllOf(world.pool()));
  EXPECT_GT(film.Shoot([&] { submit(1); }), 1000U);
  image.pool.resize(stage.pool_bytes().size());
  uint32_t counted = 1;
  size_t wrong = 0;
  const size_t frames = film.Show(image.pool, [&] {
    stage.Fill(image);
    IndexContents contents;
    KeptServer server(stage, stage.AdoptIndex(&contents).value());
    if (!server.loop().Recover(contents).ok() || server.loop().tables().jobs.size() != 1) {
      ++wrong;
      return;
    }
    server.Settle();
    JobStates& found = *server.loop().tables().jobs.front()->states;
    const uint32_t stored = found.intake(0, 0).micro_batches_stored;
    const auto* sum = reinterpret_cast<const float*>(found.chunk(0).planes.gradient);
    bool right = stored >= counted && stored <= 2;
    for (uint64_t i = 0; i < 64; ++i)
      right &= sum[i] == (stored == 2 ? static_cast<float>(2 * i + 100) : static_cast<float>(i));
    counted = stored;
    wrong += right ? 0 : 1;
    server.LoseAll();
  });
  EXPECT_GT(frames, 20U);
  EXPECT_EQ(counted, 2U);
  EXPECT_EQ(wrong, 0U) << "of " << frames;
}

}  // namespace kept_step_test
}  // namespace tidepool::memserver
