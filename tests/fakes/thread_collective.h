// ThreadCollective: the ranks of one data group as threads of a test; their operations meet in a
// shared ThreadGroup.
//
// An operation is carried out when the last rank has started it, on fp32 blocks; Test says so only
// after a random number of calls. Ranks that start different operations at the same point of their
// order get kCollectiveFailed: that is how a test sees ranks decide apart.
// With streams, an operation is carried out by a Poll after every rank's stream has come to it, and
// the streams wait for that.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "trainer/comm/collective.h"

namespace tidepool::testing {

class ThreadGroup {
 public:
  // `device`: of blocks that no CPU can touch, and of the streams; null: the host's memory.
  explicit ThreadGroup(uint32_t world, bool on_streams = false, device::Device* device = nullptr);
  uint32_t world() const { return world_; }

  void Join(uint64_t op, uint32_t rank, bool gather, const trainer::BlockView& block);
  bool Done(uint64_t op);
  Status Wait(uint64_t op);
  // Carries out the next operation if all streams have come to it.
  bool Poll();
  device::Flag* arrived(uint32_t rank) { return &flags_[1 + rank]; }
  device::Flag* finished() { return &flags_[0]; }
  // No rank waits any longer: a rank has failed.
  void Break();
  // A rank will fail. From then until Break its streams wait for nothing, so what is exchanged
  // meanwhile is written by them at the same time: bytes that nobody uses. Call it before the first
  // operation.
  void ExpectFailure() { may_fail_ = true; }

 private:
  struct Op {
    bool gather = false, done = false, failed = false;
    uint64_t shard_elements = 0;
    std::vector<float*> blocks;
    uint32_t joined = 0;
  };
  void Run(Op* op);
  // In memory of the host.
  void Exchange(Op* op);
  void ExchangeWithoutOrder(Op* op);
  void ExchangeShards(Op* op);

  uint32_t world_;
  bool on_streams_;
  // The last operation that was carried out; then by rank the last one that its stream has come to.
  device::Flag* flags_ = nullptr;
  std::vector<std::byte> memory_;  // of the flags
  std::unique_ptr<device::Registration> registered_;
  std::unique_ptr<device::Stream> copies_;  // of a device
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Op> ops_;  // by number, from 1
  bool broken_ = false, may_fail_ = false;
};

class ThreadCollective final : public trainer::Collective {
 public:
  ThreadCollective(ThreadGroup* group, uint32_t rank, uint64_t seed, uint64_t delay_max,
                   device::Stream* stream = nullptr)
      : group_(group), rank_(rank), random_(seed), delay_max_(delay_max), stream_(stream) {}

  uint32_t rank() const override { return rank_; }
  uint32_t world() const override { return group_->world(); }
  Ticket StartAllGather(const trainer::BlockView& block) override { return Start(true, block); }
  Ticket StartReduceScatter(const trainer::BlockView& block) override {
    return Start(false, block);
  }
  // No test has parts for this fake.
  Ticket StartAllToAll(const trainer::PartsView&) override {
    TP_CHECK(false, "this fake moves blocks alone");
    return 0;
  }
  device::Stream* stream() override { return stream_; }
  bool Test(Ticket ticket) override {
    if (stream_ != nullptr) group_->Poll();
    return random_.Below(delay_max_ + 1) == 0 && group_->Done(ticket);
  }
  Status Wait(Ticket ticket) override { return group_->Wait(ticket); }
  Status Barrier() override { return {}; }
  Status SumDoubles(double*, uint64_t) override { return {}; }
  Status Broadcast(void*, uint64_t) override { return {}; }

  // Bytes of the shards that this rank gives the others, since the construction.
  uint64_t sent_in_gathers() const { return sent_[1]; }
  uint64_t sent_in_reductions() const { return sent_[0]; }

 private:
  Ticket Start(bool gather, const trainer::BlockView& block) {
    group_->Join(++last_, rank_, gather, block);
    sent_[gather ? 1 : 0] += (group_->world() - 1) * block.shard_elements * sizeof(float);
    if (stream_ != nullptr) {
      stream_->WriteFlag(group_->arrived(rank_), last_);
      stream_->WaitFlag(group_->finished(), last_);
    }
    return last_;
  }

  ThreadGroup* group_;
  uint32_t rank_;
  SplitMix64 random_;
  uint64_t delay_max_;
  device::Stream* stream_;
  Ticket last_ = 0;
  uint64_t sent_[2] = {0, 0};
};

}  // namespace tidepool::testing
