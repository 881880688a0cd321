// Sums over a specification: what Decode adds up once is what the functions say of each chunk, and
// the serve loop adds up nothing.
#include "shm/spec/spec_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/point.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"
#include "shm/spec/validate.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace spec_sums_test {

shm::JobSpec Decoded(const shm::JobSpec& spec) {
  auto decoded = shm::Decode(shm::Encode(spec));
  EXPECT_TRUE(decoded.ok()) << decoded.status().Format();
  return std::move(decoded).value();
}

// Chunks of several sizes, two data groups, ranks in one of them only.
shm::JobSpec Uneven(DType dtype, uint32_t states_on_gpu, uint32_t f32_chunks = 0) {
  shm::JobSpec spec = MakeSpec(
      {.world = 3, .dtype = dtype, .chunks = 9, .chunk_elements = 192 * 3, .micro_batches = 2});
  spec.data_groups.push_back({0b011});
  for (size_t id = 0; id < spec.chunks.size(); ++id) {
    spec.chunks[id].elements *= 1 + 97 * (id % 3);
    spec.chunks[id].data_group = id % 2;
  }
  spec.data_groups[0].rank_mask = 0b101;
  spec.states_on_gpu = states_on_gpu;
  spec.f32_chunks = f32_chunks;
  return spec;
}

void ExpectSameSums(const shm::JobSpec& spec) {
  ASSERT_TRUE(shm::Validate(spec).ok()) << shm::Validate(spec).Format();
  const shm::JobSpec decoded = Decoded(spec);
  ASSERT_NE(decoded.sums.made, nullptr);
  ASSERT_EQ(spec.sums.made, nullptr);
  EXPECT_EQ(shm::StateBytesOf(decoded).total(), shm::StateBytesOf(spec).total());
  EXPECT_EQ(shm::StateBytesOf(decoded).records, shm::StateBytesOf(spec).records);
  const auto chunks = static_cast<ChunkId>(spec.chunks.size());
  std::vector<ChunkId> firsts{shm::kNoSpill};
  for (ChunkId id = 0; id <= chunks; ++id) firsts.push_back(id);
  for (const ChunkId first : firsts) {
    EXPECT_EQ(shm::HostBytesOf(decoded, first), shm::HostStateBytesOf(spec, first).total())
        << first;
    EXPECT_EQ(shm::NvmeBytesOf(decoded, first), shm::NvmeBytesOf(spec, first)) << first;
    const shm::WeightSpill weights = shm::WeightsSpilledFor(spec, first, 0);
    EXPECT_EQ(shm::WeightsSpilledFor(decoded, first, 0), weights) << first;
    EXPECT_EQ(shm::HostBytesOf(decoded, first, weights),
              shm::HostStateBytesOf(spec, first, weights).total())
        << first;
    const uint64_t planes = shm::HostPlanesFrom(spec, 0, first, weights);
    const shm::StateBytes all = shm::StateBytesOf(spec);
    EXPECT_EQ(planes + all.records + all.staging, shm::HostBytesOf(spec, first, weights)) << first;
    for (uint64_t from = 0; from <= spec.chunks.size(); ++from) {
      EXPECT_EQ(shm::HostPlanesFrom(decoded, from, first, weights),
                shm::HostPlanesFrom(spec, from, first, weights))
          << first << " from " << from;
    }
  }
}

TEST(SumsOfASpecification, AreThoseOfItsChunks) {
  ExpectSameSums(Uneven(DType::kF32, 0));
  ExpectSameSums(Uneven(DType::kBF16, 0));
  ExpectSameSums(Uneven(DType::kBF16, 4));
  ExpectSameSums(Uneven(DType::kF32, 9));
  for (const uint32_t f32_chunks : {1U, 4U, 8U}) {
    ExpectSameSums(Uneven(DType::kBF16, 0, f32_chunks));
    ExpectSameSums(Uneven(DType::kF16, 3, f32_chunks));
  }
  ExpectSameSums(MakeSpec({.dtype = DType::kBF16, .chunks = 1}));
}

// A window that begins in any block, in its middle and at its ends, and none at all.
TEST(SumsOfASpecification, FindTheWindowThatTheWayThroughAllChunksFinds) {
  shm::JobSpec spec = MakeSpec(
      {.dtype = DType::kBF16, .chunks = 2 * shm::WindowSums::kBlock + 9, .chunk_elements = 2048});
  const auto chunks = static_cast<ChunkId>(spec.chunks.size());
  for (const uint64_t mostly : {1U, 7U, 40U}) {
    spec.f32_chunks = mostly == 7 ? 300 : 0;
    for (ChunkId id = 0; id < chunks; ++id) {
      spec.chunks[id].elements =
          2048 * (1 + mostly * (id * 2654435761U % 5) + (id % 211 == 3 ? 900 : 0));
    }
    const shm::JobSpec decoded = Decoded(spec);
    for (const ChunkId first : {ChunkId{0}, ChunkId{1}, ChunkId{255}, ChunkId{256}, ChunkId{400},
                                chunks - 9, chunks - 1, shm::kNoSpill}) {
      EXPECT_EQ(shm::WeightSlotBytes(decoded, std::min(first, chunks - 1)),
                shm::WeightSlotBytes(spec, std::min(first, chunks - 1)));
      const uint64_t all = shm::HostBytesOf(spec, first);
      const uint64_t least = shm::HostBytesOf(spec, first, shm::WeightsSpilledFor(spec, first, 0));
      for (uint64_t part = 0; part <= 12; ++part) {
        const uint64_t pool = least - kPageBytes + (all - least + 2 * kPageBytes) / 12 * part;
        EXPECT_EQ(shm::WeightsSpilledFor(decoded, first, pool),
                  shm::WeightsSpilledFor(spec, first, pool))
            << first << " in " << pool;
      }
    }
  }
}

TEST(SumsOfASpecification, KnowTheSharesOnGpusAndTheParameters) {
  const shm::JobSpec spec = Uneven(DType::kBF16, 4), decoded = Decoded(spec);
  for (Rank rank = 0; rank < spec.world; ++rank) {
    EXPECT_EQ(shm::GpuShareBytes(decoded, rank), shm::GpuShareBytes(spec, rank));
    EXPECT_EQ(shm::GpuStagingOf(decoded, rank).bytes, shm::GpuStagingOf(spec, rank).bytes);
  }
  EXPECT_EQ(decoded.ParameterCount(), spec.ParameterCount());
}

TEST(SumsOfASpecification, KnowTheLargestShardOfEachRank) {
  const shm::JobSpec spec = Uneven(DType::kF32, 0);
  std::vector<uint64_t> largest(spec.world, 0);
  for (ChunkId id = 0; id < spec.chunks.size(); ++id) {
    for (Rank rank = 0; rank < spec.world; ++rank) {
      if (spec.IsMember(id, rank)) largest[rank] = std::max(largest[rank], spec.ShardElements(id));
    }
  }
  EXPECT_EQ(shm::LargestShards(spec), largest);
}

TEST(SumsOfASpecification, KnowTheRowsOfTablesAndTheBytesOfTheEncodedForm) {
  for (const shm::JobSpec& spec : {Uneven(DType::kF32, 0), Uneven(DType::kBF16, 4)}) {
    const shm::JobSpec decoded = Decoded(spec);
    std::vector<uint32_t> of_ranks(spec.world, 0);
    uint64_t shards = 0;
    for (ChunkId id = 0; id < spec.chunks.size(); ++id) {
      for (Rank rank = 0; rank < spec.world; ++rank) of_ranks[rank] += spec.IsMember(id, rank);
      shards += spec.ShardCount(id);
    }
    EXPECT_EQ(shm::ChunksOfRanks(spec), of_ranks);
    EXPECT_EQ(shm::ChunksOfRanks(decoded), of_ranks);
    EXPECT_EQ(shm::TableCountsOf(spec).shards, shards);
    EXPECT_EQ(shm::TableCountsOf(decoded).shards, shards);
    EXPECT_EQ(shm::TableCountsOf(decoded).pieces, shm::TableCountsOf(spec).pieces);
    EXPECT_EQ(shm::ExtentCount(decoded), shm::ExtentCount(spec));
    EXPECT_EQ(shm::LargestShards(decoded), shm::LargestShards(spec));
    const std::vector<std::byte> encoded = shm::Encode(spec);
    EXPECT_EQ(shm::EncodedBytesOf(decoded), encoded.size());
    EXPECT_EQ(shm::EncodedBytesOf(spec), encoded.size());
    for (const uint64_t bytes_max : {uint64_t{1}, uint64_t{100}, encoded.size()}) {
      std::vector<std::byte> parts;
      shm::SpecEncoder encoder(&decoded);
      for (auto part = encoder.Next(bytes_max); !part.empty(); part = encoder.Next(bytes_max))
        parts.insert(parts.end(), part.begin(), part.end());
      EXPECT_EQ(parts, encoded) << "in parts of " << bytes_max;
    }
  }
}

TEST(SumsOfASpecification, AreNotThoseOfACopyThatIsChanged) {
  const shm::JobSpec decoded = Decoded(MakeSpec({}));
  shm::JobSpec copy = decoded;
  copy.chunks[0].elements *= 64;
  EXPECT_GT(shm::StateBytesOf(copy).total(), shm::StateBytesOf(decoded).total());
}

// Counts how often something goes through all chunks of a specification for a sum.
class SumsMade {
 public:
  SumsMade() {
    SetPointHook([this](const char* name) {
      count_ += std::string_view(name) == "shm.spec_summed" ? 1 : 0;
    });
  }
  ~SumsMade() { SetPointHook({}); }
  SumsMade(const SumsMade&) = delete;
  SumsMade& operator=(const SumsMade&) = delete;
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

uint64_t MadeWhileSettling(ServeWorld* world) {
  const SumsMade sums;
  world->Settle();
  return sums.count();
}

void ExpectNoSumsOnTheLoop(WorldOptions options, const shm::JobSpec& first,
                           const shm::JobSpec& second) {
  ServeWorld world(options);
  world.MayWait(true);
  world.Reserve(first, 0);
  EXPECT_EQ(MadeWhileSettling(&world), 0U) << "a job is made";
  const auto granted = world.TakeReply<ReserveGranted>();
  ASSERT_TRUE(granted);
  const auto rank = world.Attach(*granted, 0);
  EXPECT_EQ(MadeWhileSettling(&world), 0U) << "a rank attaches";

  world.Reserve(second, 0);
  EXPECT_EQ(MadeWhileSettling(&world), 0U) << "another one waits for room";
  ASSERT_TRUE(world.TakeReply<Queued>());
  world.Post(SnapshotWanted{});
  EXPECT_EQ(MadeWhileSettling(&world), 0U) << "somebody looks";
  world.Leave(*rank);
  EXPECT_EQ(MadeWhileSettling(&world), 0U) << "its turn comes";
  EXPECT_TRUE(world.TakeReply<ReserveGranted>());
}

TEST(SumsOfASpecification, AreNotMadeOnTheServeLoop) {
  const auto spec = [](const char* name) {
    return MakeSpec({.name = name, .chunks = 16, .rcache_bytes = 4096});
  };
  ExpectNoSumsOnTheLoop({.pool_bytes = shm::StateBytesOf(spec("a")).total()}, spec("a"), spec("b"));
}

TEST(SumsOfASpecification, AreNotMadeOnTheServeLoopWhereStatesSpill) {
  const auto spec = [](const char* name) {
    return MakeSpec({.name = name, .chunks = 16, .rcache_bytes = 4096});
  };
  const uint64_t all = shm::StateBytesOf(spec("a")).total(),
                 least = shm::LeastHostBytesOf(spec("a"));
  ASSERT_LT(least, all);
  ExpectNoSumsOnTheLoop({.pool_bytes = RoundUp((all + least) / 2, kPageBytes),
                         .nvme_directories = 1,
                         .nvme_bytes = 16 * kMiB},
                        spec("a"), spec("b"));
}

TEST(SumsOfASpecification, AreNotMadeOnTheServeLoopWhereWeightsSpill) {
  const auto spec = [](const char* name) {
    return MakeSpec({.name = name, .dtype = DType::kBF16, .chunks = 16, .rcache_bytes = 4096});
  };
  const uint64_t with_weights = shm::HostBytesOf(spec("a"), 0),
                 least = shm::LeastHostBytesOf(spec("a"));
  ASSERT_LT(least, with_weights);
  ExpectNoSumsOnTheLoop({.pool_bytes = RoundUp((with_weights + least) / 2, kPageBytes),
                         .nvme_directories = 1,
                         .nvme_bytes = 16 * kMiB},
                        spec("a"), spec("b"));
}

}  // namespace spec_sums_test
}  // namespace tidepool::memserver
