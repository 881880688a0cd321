// SimRank: one simulated trainer rank: joins, puts weights, fetches, submits, ends steps, saves,
// leaves; may die at any point; and does what client/ does when its server is gone: takes the
// answers that are there, comes back, and sends again what was not answered.
//
// One thread. Poke does one small thing, chosen by the seed; what is possible depends on the state
// only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/attempt.h"
#include "tests/fakes/serve_world.h"
#include "tests/sim/sim_job.h"

namespace tidepool::memserver {

class SimRank {
 public:
  struct Place {  // in the simulated world
    ServeWorld* world = nullptr;
    SimJob* job = nullptr;
    const FaultPlan* plan = nullptr;
    SplitMix64* random = nullptr;
  };
  SimRank(const Place& place, Rank rank)
      : world_(place.world),
        job_(place.job),
        plan_(place.plan),
        random_(place.random),
        rank_(rank) {}

  enum class State {
    kAbsent,     // no connection
    kReserving,  // waits for the grant
    kGranted,    // has not attached yet
    kAttaching,  // waits to be attached
    kRunning,
    kDoomed,     // its session cannot go on (a peer died): it will go away
    kLeaving,    // has said goodbye and waits for the answer
    kParked,     // knows that its server is gone
    kResuming,   // has asked the next server to go on
    kReturning,  // has new rings and waits to be attached
  };
  State state() const { return state_; }
  // 0: no connection, or one to a server that is gone.
  ConnectionId connection() const { return connection_; }
  Rank rank() const { return rank_; }
  // Nonce of this incarnation; 0: the process does not live.
  uint64_t nonce() const { return nonce_; }
  // The version that this rank trains from.
  Version version() const { return version_; }
  bool leaving() const { return leaving_; }
  // Parts of frozen chunks that all incarnations have received, and uploads of wrong bytes that
  // were found out.
  uint64_t frozen_fetched() const { return frozen_fetched_; }
  uint64_t frozen_rejected() const { return frozen_rejected_; }
  // Since when it has no server, across several of them that died.
  int64_t lost_since_ns() const { return lost_since_ns_; }
  // May be asked to save: it is between the calls of a step.
  bool MaySave() const;

  void Reserve();
  // The server is gone. Ranks that train notice it later.
  void LoseServer();
  // The server is gone, and with it the states of the job that this incarnation is attached to.
  void LoseStates() { states_lost_ = connection_ != 0 || lost_since_ns_ != 0; }
  bool states_lost() const { return states_lost_; }
  // Replies of the control thread's queue that name this connection.
  void On(const ReserveGranted& granted);
  void On(const Refused& refused);
  void On(const Attached& attached, std::string* log);
  void On(const SessionOver& over);
  void On(const SaveDone& done);
  void Doom();
  // Does one small thing. `log` gets what was done; empty: nothing.
  void Poke(std::string* log);
  // Kills the process: nothing that it had is reachable any more.
  void Die();
  // Says goodbye.
  void Leave();
  void Save();

 private:
  struct Pending {  // a request in flight
    shm::Request request{};
    uint64_t block = 0;  // index of its rCache block; kNoBlock where it has none
    bool sent_again = false;
    bool duplicate = false;  // was answered before
  };
  static constexpr uint64_t kNoBlock = ~uint64_t{0};
  struct Frozen {  // one of the job's list
    enum class State { kAsk, kAsked, kPut, kAlreadyPresent };
    State state = State::kAsk;
    uint64_t bytes_sent = 0;
    uint32_t puts_out = 0;
    bool lost = false;   // the upload: what is left of it is not sent
    bool wrong = false;  // the upload has a wrong byte
  };

  void BeginStep(Version version);
  void Act(std::string* log);
  void Park(std::string* log);
  void SendAgain(std::string* log);
  void SendDuplicates();
  // Sends a new request, which names its attempt, and remembers it.
  void Sent(shm::Request request, uint64_t block);
  void TakeAnswers(std::string* log);
  void OnAnswer(const Pending& pending, const shm::Completion& answer, std::string* log);
  void OnFetched(const Pending& pending, const shm::Completion& answer);
  void OnStepEnded(const Pending& pending, const shm::Completion& answer, std::string* log);
  bool PutSome(std::string* log);
  bool SubmitSome(std::string* log);
  bool FetchSome(std::string* log);
  bool SaySome(std::string* log);
  bool EndStep(std::string* log);
  bool FrozenSome(std::string* log);
  bool PutFrozen(size_t index, std::string* log);
  bool FetchFrozen(std::string* log);
  bool HasPutWrong(size_t index) const;
  void OnFrozen(const Pending& pending, const shm::Completion& answer);
  void Gone();
  const std::vector<ChunkId>& MyChunks();
  bool WeightsReady() const;
  uint64_t ShardBegin(ChunkId chunk) const {
    return job_->spec().ShardIndex(chunk, rank_) * job_->spec().ShardElements(chunk);
  }
  size_t Waited() const;
  // An unused block of the rCache; false when all are in flight.
  bool TakeBlock(uint64_t* block);
  void FreeBlock(uint64_t block);
  std::byte* BlockBytes(uint64_t block) const;
  uint64_t BlockOffset(uint64_t block) const;

  ServeWorld* const world_;
  SimJob* const job_;
  const FaultPlan* const plan_;
  SplitMix64* const random_;
  const Rank rank_;
  State state_ = State::kAbsent;
  ConnectionId connection_ = 0;
  uint64_t nonce_ = 0;
  bool server_lost_ = false;  // and not noticed yet
  int64_t lost_since_ns_ = 0;
  bool states_lost_ = false;
  bool leaving_ = false;
  bool saving_ = false;
  std::unique_ptr<ReserveGranted> granted_;
  std::unique_ptr<FakeRank> ends_;
  std::map<uint64_t, Pending> pending_;  // by counter: in the order of sending
  // Answered puts, or gradients of the open step, and the end of the step before.
  std::vector<shm::Request> answered_;
  std::vector<bool> blocks_busy_;
  std::vector<ChunkId> my_chunks_;
  bool loading_ = false;
  std::vector<uint64_t> put_elements_;  // by chunk
  std::vector<Frozen> frozen_;
  uint64_t frozen_fetched_ = 0, frozen_rejected_ = 0;
  uint32_t puts_answered_ = 0, puts_sent_ = 0;
  uint32_t life_ = 0;  // life of the job, when this incarnation attached
  Version version_ = 0;
  client::Attempt attempt_;          // at the step after it
  std::vector<uint32_t> submitted_;  // micro-batches by chunk, of the open step
  size_t said_ = 0;                  // requests of SimJob::Says that were sent
  bool ended_ = false;
};

}  // namespace tidepool::memserver
