// SimRank: one simulated trainer rank: joins, puts weights, fetches, submits, ends steps, may die at any point.
//
// One thread. Poke does one small thing, chosen by the seed; what is possible depends on the state only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/fakes/serve_world.h"
#include "tests/sim/sim_job.h"

namespace tidepool::memserver {

class SimRank {
 public:
  SimRank(ServeWorld* world, SimJob* job, Rank rank, SplitMix64* random) : world_(world), job_(job), rank_(rank), random_(random) {}

  enum class State {
    kAbsent,     // no connection
    kReserving,  // waits for the grant
    kGranted,    // has not attached yet
    kAttaching,  // waits to be attached
    kRunning,
    kDoomed,  // its session cannot go on (a peer died, or the server ended it): it will go away
  };
  State state() const { return state_; }
  ConnectionId connection() const { return connection_; }
  Rank rank() const { return rank_; }
  // The version that this rank trains from.
  Version version() const { return version_; }

  void Reserve();
  // Replies of the control thread's queue that name this connection.
  void On(const ReserveGranted& granted);
  void On(const Refused& refused);
  void On(const Attached& attached);
  void Doom() { state_ = State::kDoomed; }
  // One small thing. `log` gets what was done, empty when nothing.
  void Poke(std::string* log);
  // The process is killed: nothing it had is reachable any more.
  void Die();
  // Says goodbye and is gone.
  void Leave();

 private:
  struct Pending {  // a request in flight
    shm::Op op = shm::Op::kFetch;
    ChunkId chunk = 0;
    uint64_t block = 0;  // index of its rCache block; kNoBlock for the end of a step
    Version version = 0;
  };
  static constexpr uint64_t kNoBlock = ~uint64_t{0};

  void BeginStep(Version version);
  void TakeAnswers(std::string* log);
  void OnAnswer(const Pending& pending, const shm::Completion& answer, std::string* log);
  void OnFetched(const Pending& pending);
  void OnStepEnded(const shm::Completion& answer, std::string* log);
  bool PutSome(std::string* log);
  bool SubmitSome(std::string* log);
  bool FetchSome(std::string* log);
  bool EndStep(std::string* log);
  std::vector<ChunkId> MyChunks() const;
  bool WeightsReady() const;
  uint64_t ShardBegin(ChunkId chunk) const { return job_->spec().ShardIndex(chunk, rank_) * job_->spec().ShardElements(chunk); }
  // An unused block of the rCache; false when all are in flight.
  bool TakeBlock(uint64_t* block);
  void FreeBlock(uint64_t block);
  std::byte* BlockBytes(uint64_t block) const;
  uint64_t BlockOffset(uint64_t block) const;

  ServeWorld* const world_;
  SimJob* const job_;
  const Rank rank_;
  SplitMix64* const random_;
  State state_ = State::kAbsent;
  ConnectionId connection_ = 0;
  std::unique_ptr<ReserveGranted> granted_;
  std::unique_ptr<FakeRank> ends_;
  std::unordered_map<uint64_t, Pending> pending_;  // by counter
  std::vector<bool> blocks_busy_;
  bool loading_ = false;
  std::vector<uint64_t> put_elements_;  // by chunk
  uint32_t puts_answered_ = 0, puts_sent_ = 0;
  Version version_ = 0;
  uint32_t attempt_ = 0;
  std::vector<uint32_t> submitted_;  // micro-batches by chunk, of the open step
  bool ended_ = false;
};

}  // namespace tidepool::memserver
