// SaveDesk: decides when each save of weights begins, and what it holds meanwhile.
//
// One thread (the serve loop). It owns the lanes of running saves and their numbers; the checkpoint
// thread writes the files. A save waits until all chunks have the requested version, and comes
// before the next seal. It holds its job's updates only once its write begins: a save that waits
// for a lane delays nothing but its own job's next seal.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "memserver/checkpoint/save_request.h"
#include "memserver/jobs/desk_context.h"
#include "memserver/jobs/saves/save_lanes.h"

namespace tidepool::memserver {

class SaveDesk {
 public:
  explicit SaveDesk(const DeskContext& context) : context_(context) {}

  // A rank asks for the weights of the last sealed version in a file. The answer is a SaveDone.
  void Request(SaveWeights event);
  // A process that is no rank asks for all states. The answer is a Refused, or a StatesGiven and
  // later a SaveDone.
  void Ask(AskStates event);
  // Begins the job's saves whose version is complete. True when one began or was refused.
  bool Poll(Job* job);
  // Notes that the rank or process is gone. The stream of a rank then needs a reader that is
  // already attached; that of a process that is no rank ends.
  void Forget(ConnectionId connection);
  // Notes a save that the checkpoint thread has finished.
  void End(const SaveResult& saved);

 private:
  static Status Check(const SessionSlot* slot, const SaveWeights& event);
  Result<Job*> JobToGive(const AskStates& event) const;
  static bool HasReady(const Job& job);
  bool HasLaneFor(const Job& job);
  Status WhyNotSaved(const Job& job, const WaitingSave& save, int64_t now);
  bool StaysWaiting(Job* job, int64_t now);
  void StartStream(Job* job, WaitingSave save, SaveRequest request);
  void Start(Job* job, WaitingSave save, int64_t now);

  const DeskContext context_;
  SaveLanes lanes_;
  // StreamTask::asker_gone of each running stream.
  std::map<ConnectionId, std::shared_ptr<std::atomic<bool>>> askers_;
  uint64_t last_number_ = 0;
};

}  // namespace tidepool::memserver
