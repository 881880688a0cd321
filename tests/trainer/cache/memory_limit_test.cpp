// A limit on the memory of a rank: what a step has measured becomes budgets of blocks, and chunks
// and all else together stay within the limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "tests/trainer/cache/toy_run.h"

namespace tidepool::trainer {
namespace memory_limit_test {

constexpr uint64_t kBlock = kPageBytes;  // small chunks take a page
constexpr uint32_t kSteps = 5;
// A fifth of the limit is for chunks in the warm-up, so that they fit beside the peak.
constexpr uint64_t kOthers = 4;  // times what fits beside it

// What operators use, of all calls of one pass alike: rises to its middle and falls again.
class FakeOthers {
 public:
  FakeOthers(uint64_t calls_of_pass, uint64_t peak) : calls_(calls_of_pass), peak_(peak) {}
  uint64_t Take() {
    const uint64_t at = calls_ == 0 ? 0 : made_ % calls_, half = calls_ / 2;
    ++made_;
    return calls_ == 0 ? 0 : peak_ * std::min(at, calls_ - at) / std::max<uint64_t>(half, 1);
  }
  // The last call was none of those that all passes make.
  void Undo() { --made_; }
  uint64_t made() const { return made_; }

 private:
  const uint64_t calls_, peak_;
  uint64_t made_ = 0;
};

// The larger number of two ranks.
class TwoRanks {
 public:
  Status Most(Rank rank, std::vector<uint64_t>* numbers) {
    numbers_[rank] = *numbers;
    all_.arrive_and_wait();
    for (size_t i = 0; i < numbers->size(); ++i)
      (*numbers)[i] = std::max(numbers_[0][i], numbers_[1][i]);
    all_.arrive_and_wait();
    return {};
  }

 private:
  std::barrier<> all_{2};
  std::vector<uint64_t> numbers_[2];
};

struct Limited {
  ToyConfig config;
  std::vector<std::unique_ptr<FakeOthers>> others;
  std::vector<uint64_t> released;  // blocks, by rank
  TwoRanks ranks;

  Limited(uint64_t seed, uint32_t world) : released(world, 0) {
    config.model = MakeToyModel(seed, 10, 1);
    config.layout.world = world;
    config.layout.chunk_bytes = 192 * 4;
    config.cache.seed = seed;
    config.cache.separate_while_recording = false;  // so that all passes make the same calls
    config.steps = kSteps;
    config.evaluate = false;
    config.blocks = 1000;
  }

  // Rank 1 uses half as much as rank 0. The rCache is no larger than the limit.
  void Limit(uint64_t bytes, uint64_t calls_of_pass, uint64_t peak, uint64_t resident = 0) {
    config.blocks = std::min<uint64_t>(config.blocks, (bytes - resident) / kBlock);
    const uint32_t world = config.layout.world;
    others.clear();
    for (Rank rank = 0; rank < world; ++rank)
      others.push_back(std::make_unique<FakeOthers>(calls_of_pass, rank == 0 ? peak : peak / 2));
    config.limit = [this, bytes, world](Rank rank) {
      MemoryLimit limit;
      limit.bytes = bytes;
      limit.take_peak = [this, rank] { return others[rank]->Take(); };
      limit.release = [this, rank](std::byte*, uint64_t size) {
        released[rank] += size / kBlock;
        return true;
      };
      limit.most_of_ranks = [this, rank, world](std::vector<uint64_t>* numbers) {
        others[rank]->Undo();
        return world == 1 ? Status() : ranks.Most(rank, numbers);
      };
      return limit;
    };
  }
};

// The calls of one pass, and the rCache's need.
struct Measures {
  uint64_t calls = 0, smallest = 0, chunks = 0, resident = 0;
};
Measures Measure(uint64_t seed, uint32_t world) {
  Limited made(seed, world);
  Measures measures{.smallest = SmallestFor(made.config)};
  made.Limit(uint64_t{1} << 40, 0, 0);
  const ToyResult result = RunToy(made.config);
  ExpectGood(result);
  measures.calls = made.others[0]->made() / kSteps;
  EXPECT_EQ(made.others[0]->made() % kSteps, 0u);
  measures.chunks = result.layout.EvictableChunks(0);
  measures.resident = result.layout.ResidentBytes(0);
  return measures;
}

TEST(MemoryLimit, HoldsWithEveryNumberOfBlocksAndOfRanks) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const uint32_t world = 1 + seed % 2;
    const Measures all = Measure(seed, world);
    for (const uint64_t blocks_at_peak : {all.smallest, all.smallest + 2, all.chunks}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(blocks_at_peak));
      Limited made(seed, world);
      const uint64_t peak = kOthers * blocks_at_peak * kBlock,
                     limit = all.resident + peak + blocks_at_peak * kBlock;
      made.Limit(limit, all.calls, peak, all.resident);
      made.config.cache.prefetch_depth = seed % 4;
      const ToyResult result = RunToy(made.config);
      ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
      for (Rank rank = 0; rank < world; ++rank) {
        const ToyRankResult& one = result.ranks[rank];
        EXPECT_EQ(one.decisions, result.ranks[0].decisions);
        EXPECT_LE(one.after_step.back().memory_most, limit);
        EXPECT_GT(one.after_step.back().memory_most, peak / 2);
        EXPECT_EQ(one.followed, (std::vector<bool>{false, true, true, true, true}));
        EXPECT_EQ(one.after_step.back().unforeseen, one.after_step[0].unforeseen);
        EXPECT_EQ(made.released[rank] > 0, blocks_at_peak < all.chunks);
      }
    }
  }
}

// Budgets that follow what operators use let blocks stay that one size for all moments would not.
TEST(MemoryLimit, BudgetsFollowTheMoments) {
  const Measures all = Measure(3, 1);
  Limited made(3, 1);
  const uint64_t peak = kOthers * all.smallest * kBlock;
  made.Limit(all.resident + peak + all.smallest * kBlock, all.calls, peak, all.resident);
  const ToyResult result = RunToy(made.config);
  ExpectGood(result);
  const ToyRankResult& one = result.ranks[0];
  // Measured in the second step, in force from the third one on.
  const auto fetches = [&one](size_t step) {
    return one.after_step[step].misses + one.after_step[step].prefetches -
           one.before_step[step].misses - one.before_step[step].prefetches;
  };
  EXPECT_LE(fetches(3), fetches(1));
  EXPECT_EQ(fetches(4), fetches(3));
  EXPECT_GT(one.after_step[3].evictions, one.before_step[3].evictions);
}

TEST(MemoryLimit, ThatIsTooSmallNamesOneThatWorks) {
  const Measures all = Measure(1, 1);
  const uint64_t peak = kOthers * all.smallest * kBlock;
  Limited made(1, 1);
  made.Limit(all.resident + peak, all.calls, peak);
  const Status refused = RunToy(made.config).ranks[0].status;
  ASSERT_EQ(refused.id(), ErrorId::kRcacheTooSmall) << refused.Format();
  const std::string text = refused.Format(), words = "--device-memory at least ";
  ASSERT_NE(text.find(words), std::string::npos) << text;
  const uint64_t named = std::stoull(text.substr(text.find(words) + words.size()));

  Limited again(1, 1);
  again.Limit(named, all.calls, peak, all.resident);
  const ToyResult result = RunToy(again.config);
  ExpectGood(result);
  EXPECT_LE(result.ranks[0].after_step.back().memory_most, named);

  Limited below(1, 1);
  below.Limit(named - 1, all.calls, peak);
  EXPECT_EQ(RunToy(below.config).ranks[0].status.id(), ErrorId::kRcacheTooSmall);
}

// Two operators change places: the new order has other moments, so that they are measured again.
TEST(MemoryLimit, AnotherOrderIsMeasuredAgain) {
  const Measures all = Measure(2, 1);
  Limited made(2, 1);
  made.config.shuffle_second_half = true;
  made.config.steps = 7;
  const uint64_t peak = 60 * kBlock, limit = all.resident + peak + (all.smallest + 3) * kBlock;
  made.Limit(limit, all.calls, peak);
  const ToyResult result = RunToy(made.config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
  EXPECT_GT(result.ranks[0].after_step.back().deviations, 0u);
  EXPECT_TRUE(result.ranks[0].followed.back());
}

}  // namespace memory_limit_test
}  // namespace tidepool::trainer
