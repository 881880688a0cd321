// HostileRank: a trainer rank whose process does what fuzz bytes say: sound requests with wrong
// fields, and wrong words anywhere in the memory that it shares with the server.
//
// One thread, beside a ServeWorld that outlives it.
#pragma once

#include <memory>

#include "shm/channel_layout.h"
#include "shm/segment.h"
#include "tests/fakes/serve_world.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool::memserver {

class HostileRank {
 public:
  HostileRank(ServeWorld* world, Rank rank) : world_(world), rank_(rank) {}

  bool here() const { return rank_side_ != nullptr; }
  FakeRank& rank_side() { return *rank_side_; }
  // A new process.
  void Join(const shm::JobSpec& spec);
  // The same process at another server; it is gone when that refuses.
  void Resume(const shm::JobSpec& spec);
  void Forget() { rank_side_.reset(); }

  // A request that the job's state allows, mostly, with no or a few odd fields.
  void SendRequest(fuzz::FuzzInput* input);
  // A slot of the request ring: any words, and a sequence that may be right.
  void WriteSlot(fuzz::FuzzInput* input);
  void WriteHeader(fuzz::FuzzInput* input);
  void FillRcache(fuzz::FuzzInput* input);
  void TakeSome(uint32_t count);

 private:
  shm::Request DueFrozen(fuzz::FuzzInput* input, const Job& job);
  shm::Request DueNumbers(fuzz::FuzzInput* input, const Job& job);
  shm::Request DueRequest(fuzz::FuzzInput* input, const Job& job);
  const SessionSlot* slot() const { return world_->tables().FindSlot(rank_side_->connection()); }
  void MapRing();

  ServeWorld* const world_;
  const Rank rank_;
  std::unique_ptr<FakeRank> rank_side_;
  std::unique_ptr<shm::Segment> ring_;  // the submission segment
  uint64_t counter_ = 0;                // of requests pushed
};

}  // namespace tidepool::memserver
