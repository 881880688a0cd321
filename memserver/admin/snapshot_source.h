// SnapshotSource: the newest snapshot of the serve loop, requested only while a client asks for it.
//
// Get and Look belong to the admin thread, Publish to the control thread, which takes the loop's
// SnapshotReady replies. Every wait for the loop is bounded: a loop that does not answer costs one
// wait of at most kWaitMs until it answers again.
//
//   admin thread          loop                  control thread
//   SnapshotWanted ---->  end of its turn
//                         SnapshotReady ---->   Publish
//   Get returns  <-----------------------------
//
// Invariants: at most one question is open; the next is asked no sooner than kAgeMaxMs after it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/event_queue.h"
#include "memserver/control/mailbox.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// /livez reports a dead loop only after this time: a restart costs more than a slow machine does.
inline constexpr double kDeadSeconds = 10;
// /readyz and the reports call the loop silent from here on.
inline constexpr double kSilentSeconds = 1;

// What an answer is made from. `snapshot` is null until the loop has answered for the first time.
struct SnapshotLook {
  std::shared_ptr<const Snapshot> snapshot;
  double age_seconds = 0;  // of the snapshot
  // How long the open question has waited for the loop; 0 if none is open.
  double silent_seconds = 0;
};

class SnapshotSource {
 public:
  // Younger snapshots are reused: many watchers cost the loop no more than one.
  static constexpr int64_t kAgeMaxMs = 50;
  static constexpr int64_t kWaitMs = 1000;

  // Both must outlive this object.
  SnapshotSource(EventQueue<ControlEvent>* to_loop, const Clock* clock)
      : to_loop_(to_loop), clock_(clock) {}

  // A snapshot no older than kAgeMaxMs at the time of the call; if the loop does not answer in
  // time, the last one with its age.
  SnapshotLook Get();
  // The same without waiting: asks if the last answer is old, and returns the last one.
  SnapshotLook Look();
  // Something has changed: the next Get asks for a snapshot that shows it.
  void Outdate();
  void Publish(std::shared_ptr<const Snapshot> snapshot);

 private:
  // Asks the loop, unless a question is open or the snapshot is no older than kAgeMaxMs at this
  // time.
  void AskIfOld(int64_t at);
  SnapshotLook LookLocked(int64_t now) const;

  EventQueue<ControlEvent>* const to_loop_;
  const Clock* const clock_;
  std::mutex mutex_;  // held for a few instructions; the loop never takes it
  std::condition_variable answered_;
  std::shared_ptr<const Snapshot> snapshot_;  // guarded by mutex_, as all below
  // When it was asked for: it shows nothing older.
  int64_t snapshot_ns_ = 0;
  int64_t asked_ns_ = -1;  // of the open question; -1 if none is open
  uint64_t answers_ = 0;
  bool outdated_ = false;
  bool waited_in_vain_ = false;  // for the open question: nobody waits for it again
};

}  // namespace tidepool::memserver
