#include "tests/trainer/comm/collective_contract.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"

namespace tidepool::trainer {
namespace {

float ValueOf(uint32_t rank, uint64_t i) {
  return static_cast<float>(rank * 1000) + static_cast<float>(i % 251) * 0.25F;
}

// What a rank gives another in an all-to-all of the tests.
uint64_t PartOf(uint32_t from, uint32_t to) {
  return (from + to) % 3 == 0 ? 0 : 1'000 * from + 37 * to + 5;
}

struct PartMemory {
  std::vector<float> out, in;
  PartsView view;
};

using PartSize = uint64_t (*)(uint32_t from, uint32_t to);

// The rank's parts, with values that tell from whom they are; `in` holds -1.
void FillParts(const Collective& group, PartSize size, PartMemory* parts) {
  for (uint32_t rank = 0; rank < group.world(); ++rank) {
    parts->view.out_elements.push_back(size(group.rank(), rank));
    parts->view.in_elements.push_back(size(rank, group.rank()));
    for (uint64_t i = 0; i < size(group.rank(), rank); ++i)
      parts->out.push_back(ValueOf(group.rank() * 10 + rank, i));
  }
  parts->in.assign(parts->view.in_bytes() / sizeof(float), -1.F);
  parts->view.out = parts->out.data();
  parts->view.in = parts->in.data();
  parts->view.name = {.chunk = 3, .place = 1, .of = "experts"};
}

void ExpectParts(const Collective& group, PartSize size, const PartMemory& parts) {
  auto at = parts.in.begin();
  for (uint32_t rank = 0; rank < group.world(); ++rank) {
    for (uint64_t i = 0; i < size(rank, group.rank()); ++i, ++at)
      ASSERT_EQ(*at, ValueOf(rank * 10 + group.rank(), i)) << rank << ' ' << i;
  }
}

}  // namespace

void CollectiveContract::GathersAllShardsInPlace(Collective& group) {
  const uint64_t shard = 10'007;
  std::vector<float> block(group.world() * shard, -1.F);
  for (uint64_t i = 0; i < shard; ++i) block[group.rank() * shard + i] = ValueOf(group.rank(), i);
  ASSERT_TRUE(group.Wait(group.StartAllGather({block.data(), shard, DType::kF32})).ok());
  for (uint32_t rank = 0; rank < group.world(); ++rank) {
    for (uint64_t i = 0; i < shard; ++i)
      ASSERT_EQ(block[rank * shard + i], ValueOf(rank, i)) << rank << ' ' << i;
  }
}

void CollectiveContract::GathersTwoByteElements(Collective& group) {
  std::vector<uint16_t> block(group.world() * 3, 0);
  for (uint32_t i = 0; i < 3; ++i)
    block[group.rank() * 3 + i] = static_cast<uint16_t>(group.rank() * 3 + i + 1);
  ASSERT_TRUE(group.Wait(group.StartAllGather({block.data(), 3, DType::kBF16})).ok());
  for (uint32_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i], i + 1);
}

void CollectiveContract::ScattersTheSumInRankOrder(Collective& group) {
  // Thirds are inexact, so another order of addition would show in the last bit.
  const auto addend = [](uint32_t rank, uint64_t i) {
    return (static_cast<float>(i % 911) + 1.F) / (static_cast<float>(rank) + 3.F);
  };
  const uint64_t shard = 4'099;
  std::vector<float> block(group.world() * shard);
  for (uint64_t i = 0; i < block.size(); ++i) block[i] = addend(group.rank(), i);
  ASSERT_TRUE(group.Wait(group.StartReduceScatter({block.data(), shard, DType::kF32})).ok());
  for (uint64_t i = group.rank() * shard; i < (group.rank() + 1) * shard; ++i) {
    float sum = addend(0, i);
    for (uint32_t rank = 1; rank < group.world(); ++rank) sum += addend(rank, i);
    ASSERT_EQ(block[i], sum) << i;
  }
}

void CollectiveContract::ScattersBf16Sums(Collective& group) {
  const uint64_t shard = 33;
  const auto bf16 = [](float value) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  };
  std::vector<uint16_t> block(group.world() * shard);
  // Exact in bf16.
  for (uint64_t i = 0; i < block.size(); ++i)
    block[i] = bf16(static_cast<float>(i % 8 + group.rank()));
  ASSERT_TRUE(group.Wait(group.StartReduceScatter({block.data(), shard, DType::kBF16})).ok());
  for (uint64_t i = group.rank() * shard; i < (group.rank() + 1) * shard; ++i) {
    const uint32_t world = group.world();
    ASSERT_EQ(block[i], bf16(static_cast<float>(world * (i % 8) + world * (world - 1) / 2)));
  }
}

void CollectiveContract::ExchangesPartsOfAnySize(Collective& group) {
  PartMemory first, second;
  FillParts(group, PartOf, &first);
  FillParts(group, PartOf, &second);
  std::vector<float> block(group.world() * 3, static_cast<float>(group.rank()));
  const auto a = group.StartAllToAll(first.view);
  const auto gather = group.StartAllGather({block.data(), 3, DType::kF32});
  const auto b = group.StartAllToAll(second.view);
  ASSERT_TRUE(group.Wait(a).ok());
  ExpectParts(group, PartOf, first);
  ASSERT_TRUE(group.Wait(gather).ok());
  EXPECT_EQ(block.back(), static_cast<float>(group.world() - 1));
  ASSERT_TRUE(group.Wait(b).ok());
  ExpectParts(group, PartOf, second);
}

void CollectiveContract::ExchangesNothing(Collective& group) {
  const PartSize from_last = [](uint32_t from, uint32_t) -> uint64_t { return from == 0 ? 0 : 7; };
  const PartSize none = [](uint32_t, uint32_t) -> uint64_t { return 0; };
  for (const PartSize size : {from_last, none}) {
    PartMemory parts;
    FillParts(group, size, &parts);
    ASSERT_TRUE(group.Wait(group.StartAllToAll(parts.view)).ok());
    ExpectParts(group, size, parts);
  }
}

void CollectiveContract::TellsPartsThatDoNotFit(Collective& group) {
  if (group.world() == 1) return;
  PartMemory parts;
  FillParts(
      group, [](uint32_t, uint32_t) -> uint64_t { return 5; }, &parts);
  parts.in.resize(parts.in.size() + 1, -1.F);
  parts.view.in = parts.in.data();
  if (group.rank() == group.world() - 1) ++parts.view.in_elements[0];
  Status told = group.Wait(group.StartAllToAll(parts.view));
  const bool expects_more = group.rank() == group.world() - 1;
  if (!expects_more) {
    if (told.ok()) told = group.Barrier();
    EXPECT_EQ(told.id(), ErrorId::kCollectiveFailed);
    return;
  }
  EXPECT_EQ(told.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(told.Format().find("all-to-all of chunk 3 (experts), place 1 of its pass"),
            std::string::npos)
      << told.Format();
}

void CollectiveContract::KeepsManyOperationsApart(Collective& group) {
  constexpr uint32_t kOperations = 24;
  const uint64_t shard = 2'000;
  std::vector<std::vector<float>> blocks(kOperations,
                                         std::vector<float>(group.world() * shard, 1.F));
  std::vector<Collective::Ticket> tickets;
  for (uint32_t k = 0; k < kOperations; ++k) {
    const BlockView view{blocks[k].data(), shard, DType::kF32};
    if (k % 2 == 0) {
      std::fill_n(blocks[k].begin() + group.rank() * shard, shard,
                  static_cast<float>(k * 10 + group.rank()));
      tickets.push_back(group.StartAllGather(view));
    } else {
      std::fill(blocks[k].begin(), blocks[k].end(), static_cast<float>(k));
      tickets.push_back(group.StartReduceScatter(view));
    }
  }
  SteadyClock clock;
  while (!group.Test(tickets.back())) clock.SleepNs(kNsPerMs);
  for (const auto ticket : tickets) ASSERT_TRUE(group.Test(ticket));  // the last one ends last
  for (uint32_t k = kOperations; k-- > 0;) {
    ASSERT_TRUE(group.Wait(tickets[k]).ok());
    for (uint32_t rank = 0; k % 2 == 0 && rank < group.world(); ++rank)
      ASSERT_EQ(blocks[k][rank * shard + 7], k * 10 + rank);
    if (k % 2 == 1) {
      ASSERT_EQ(blocks[k][group.rank() * shard + 7], k * group.world());
    }
  }
}

void CollectiveContract::BroadcastsRankZerosBytes(Collective& group) {
  char text[6] = "other";
  if (group.rank() == 0) std::memcpy(text, "zero!", 6);
  ASSERT_TRUE(group.Broadcast(text, sizeof(text)).ok());
  EXPECT_STREQ(text, "zero!");
  EXPECT_TRUE(group.Barrier().ok());
  EXPECT_TRUE(group.Broadcast(nullptr, 0).ok());
  const auto nothing = group.StartAllGather({nullptr, 0, DType::kF32});
  EXPECT_TRUE(group.Wait(nothing).ok());
}

double CollectiveContract::SumsDoublesInRankOrder(Collective& group) {
  double values[3] = {1.0 / (group.rank() + 3.0), 2.0, static_cast<double>(group.rank())};
  EXPECT_TRUE(group.SumDoubles(values, 3).ok());
  EXPECT_EQ(values[1], 2.0 * group.world());
  EXPECT_EQ(values[2], group.world() * (group.world() - 1) / 2.0);
  return values[0];
}

}  // namespace tidepool::trainer
