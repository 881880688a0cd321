// PassFollower: knows where in the order of chunk uses a pass is: it records the order the first
// time, and afterwards follows it with the best plan that there is, as long as the pass keeps to it
// (Elixir v1, section VI-A; PatrickStar, section 6.2: warm-up, then tracing).
//
// One thread (the trainer's main thread). It names what is to be done; CachePass does it.
// A pass that leaves the recorded order is followed no further: the rest is recorded anew and
// replaces the old order from there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {

// What a pass is for: each kind has an order of its own.
enum class PassKind : uint8_t { kTrain, kEvaluation };
inline constexpr size_t kPassKinds = 2;

class PassFollower {
 public:
  // `evictable[c]` says whether chunk c needs a block; `blocks` is the size of the rCache.
  PassFollower(std::vector<bool> evictable, uint64_t blocks);

  // An order that is known before the first pass of its kind.
  void Declare(PassKind kind, AccessSchedule schedule);
  // Begins a pass with these chunks present. Errors: kRcacheTooSmall, when the order is known and
  // needs more blocks than there are.
  Status Begin(PassKind kind, std::vector<ChunkId> present);
  // Begins a pass that is recorded, whatever is known of its kind; what the pass before recorded is
  // forgotten.
  void BeginAnew(PassKind kind);
  // The pass has ended; what was recorded becomes its kind's order. True when that order is new.
  bool End();

  // The pass has come to `moment`. An operator that holds the same chunks as the one before is the
  // same moment.
  void Enter(const Moment& moment);
  // In a recording pass: the gradient moments of `chunk` since the last call of MarkMicroBatch are
  // withdrawn.
  void WithdrawGradients(ChunkId chunk);
  void MarkMicroBatch() { micro_batch_begin_ = recording_.moments.size(); }

  // True when the pass follows a known order.
  bool following() const { return mode_ == Mode::kFollow; }
  // What the pass carries out; null while it records or has left the order.
  const Plan* plan() const { return following() ? plan_ : nullptr; }
  bool left_order() const { return mode_ == Mode::kLeftOrder; }
  uint64_t deviations() const { return deviations_; }
  // Number of the present moment; requires that one was entered.
  uint64_t position() const { return following() ? next_ - 1 : recording_.moments.size() - 1; }

  // While following: the next step that the present moment needs, null when all are done. The
  // caller must carry it out.
  const PlanStep* TakeDueStep();
  // While following: the next step that may start at moment `horizon`, with at most `depth` steps
  // ahead of their need; null: none.
  const PlanStep* TakeStepAhead(uint64_t horizon, uint64_t depth);

  // While following: how many moments come before the one that needs the step, the present one
  // counted; 0: the present one does.
  uint32_t UsesUntil(const PlanStep& step) const;

  // Plans that were made so far: each costs a simulation of the whole order.
  uint64_t simulations() const { return simulations_; }

  // The order of a kind; empty while it is unknown.
  const AccessSchedule& schedule(PassKind kind) const {
    return schedules_[static_cast<size_t>(kind)];
  }
  // Blocks that the order followed or recorded so far needs.
  uint64_t BlocksNeeded() const;

 private:
  enum class Mode : uint8_t { kRecord, kFollow, kLeftOrder };

  // Passes of a kind begin with nothing there, with frozen chunks, or with what a pass of the other
  // kind on the same version has left.
  static constexpr size_t kPlansKept = 4;
  struct KeptPlan {
    std::vector<ChunkId> present;  // when the pass began
    std::unique_ptr<Plan> plan;
  };
  // The kept plan for a pass that begins with these chunks, made where there is none. Errors:
  // kRcacheTooSmall.
  Result<const Plan*> PlanFor(std::vector<ChunkId> present);

  const AccessSchedule& current() const { return schedules_[static_cast<size_t>(kind_)]; }

  std::vector<bool> evictable_;
  uint64_t blocks_;
  std::array<AccessSchedule, kPassKinds> schedules_;
  // The last ones that were used, the latest first.
  std::array<std::vector<KeptPlan>, kPassKinds> plans_;
  uint64_t simulations_ = 0;
  // The pass.
  PassKind kind_ = PassKind::kTrain;
  Mode mode_ = Mode::kRecord;
  bool open_ = false;
  uint64_t next_ = 0;             // following: moments entered
  AccessSchedule recording_;      // otherwise
  size_t micro_batch_begin_ = 0;  // in recording_
  const Plan* plan_ = nullptr;
  size_t next_step_ = 0;    // index in plan_
  size_t first_ahead_ = 0;  // the first step whose need is still to come
  uint64_t deviations_ = 0;
};

}  // namespace tidepool::trainer
