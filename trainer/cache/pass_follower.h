// PassFollower: the position of a pass in the order of chunk uses: records the order in the first
// pass, then follows it with the best plan as long as the pass keeps to it (Elixir v1, section
// VI-A; PatrickStar, section 6.2: warm-up, then tracing).
//
// One thread (the trainer's main thread). It names the steps; CachePass executes them. After a
// deviation from the recorded order the pass is not followed any further: the rest is recorded and
// replaces the old order from there.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {

// The purpose of a pass: each kind has its own order.
enum class PassKind : uint8_t { kTrain, kEvaluation };
inline constexpr size_t kPassKinds = 2;

class PassFollower {
 public:
  // `evictable[c]` says whether chunk c needs a block; `blocks` is the size of the rCache.
  PassFollower(std::vector<bool> evictable, uint64_t blocks);

  // Sets an order that is known before the first pass of its kind.
  void Declare(PassKind kind, AccessSchedule schedule);
  // Limits the blocks in use: by moment for passes of this kind, until another order is set; and to
  // `usable` elsewhere, or to what the order needs. Plans made so far are dropped.
  void SetBudgets(PassKind kind, std::vector<uint64_t> budgets);
  void SetUsable(uint64_t usable);
  uint64_t usable() const { return usable_; }
  bool has_budgets(PassKind kind) const { return !budgets_[static_cast<size_t>(kind)].empty(); }
  // Blocks that may be in use from the present moment until the next one; before the first moment,
  // those of the first one.
  uint64_t Budget() const;
  // Begins a pass with these chunks present. Errors: kRcacheTooSmall if the order is known and
  // needs more blocks than there are.
  Status Begin(PassKind kind, std::vector<ChunkId> present);
  // Begins a recording pass, whatever is known of its kind; drops the recording of the previous
  // pass.
  void BeginAnew(PassKind kind);
  // Ends the pass; its recording becomes its kind's order. True if that order is new.
  bool End();

  // Enters `moment`. An operator with the same chunks as the previous one is the same moment.
  void Enter(const Moment& moment);
  // In a recording pass: withdraws the gradient moments of `chunk` since the last MarkMicroBatch.
  void WithdrawGradients(ChunkId chunk);
  void MarkMicroBatch() { micro_batch_begin_ = recording_.moments.size(); }

  // True when the pass follows a known order.
  bool following() const { return mode_ == Mode::kFollow; }
  // The plan that the pass follows; null while it records or after it has left the order.
  const Plan* plan() const { return following() ? plan_ : nullptr; }
  bool left_order() const { return mode_ == Mode::kLeftOrder; }
  uint64_t deviations() const { return deviations_; }
  // True when the pass has entered a moment.
  bool entered() const { return following() ? next_ > 0 : !recording_.moments.empty(); }
  // Number of the present moment; requires that one was entered.
  uint64_t position() const { return following() ? next_ - 1 : recording_.moments.size() - 1; }

  // While following: the next step that the present moment needs, null when all are done. The
  // caller must execute it.
  const PlanStep* TakeDueStep();
  // While following: the next step that may start at moment `horizon`, with at most `depth` steps
  // ahead of their need; null: none.
  const PlanStep* TakeStepAhead(uint64_t horizon, uint64_t depth);
  // The same without taking it.
  const PlanStep* SeeStepAhead(uint64_t horizon, uint64_t depth);
  // A step that was taken ahead fetches nothing yet, and does not count for `depth`.
  void NoteLeftOut(const PlanStep& step) { left_out_.push_back(step.needed_at); }

  // While following: the moment that is `ahead` moments behind the next one, from 0, and the
  // present one; null: there is none.
  const Moment* Coming(uint64_t ahead) const;
  const Moment* Present() const;

  // While following: the number of moments, including the present one, before the one that needs
  // the step; 0: the present one does.
  uint32_t UsesUntil(const PlanStep& step) const;

  // Number of plans made so far: each costs a simulation of the whole order.
  uint64_t simulations() const { return simulations_; }

  // The order of a kind; empty if unknown.
  const AccessSchedule& schedule(PassKind kind) const {
    return schedules_[static_cast<size_t>(kind)];
  }
  // Blocks needed by the order followed or recorded so far.
  uint64_t BlocksNeeded() const;

 private:
  enum class Mode : uint8_t { kRecord, kFollow, kLeftOrder };

  // Passes of a kind begin empty, with frozen chunks, or with what a pass of the other kind has
  // left on the same version.
  static constexpr size_t kPlansKept = 4;
  struct KeptPlan {
    std::vector<ChunkId> present;  // at the start of the pass
    std::unique_ptr<Plan> plan;
  };
  // The cached plan for a pass that begins with these chunks; made if missing. Errors:
  // kRcacheTooSmall.
  Result<const Plan*> PlanFor(std::vector<ChunkId> present);

  const AccessSchedule& current() const { return schedules_[static_cast<size_t>(kind_)]; }

  std::vector<bool> evictable_;
  uint64_t blocks_;
  uint64_t usable_;  // of `blocks_`; where there are no budgets
  std::array<AccessSchedule, kPassKinds> schedules_;
  std::array<std::vector<uint64_t>, kPassKinds> budgets_;  // empty, or by moment
  // Most recently used first.
  std::array<std::vector<KeptPlan>, kPassKinds> plans_;
  uint64_t simulations_ = 0;
  // State of the pass.
  PassKind kind_ = PassKind::kTrain;
  Mode mode_ = Mode::kRecord;
  bool open_ = false;
  uint64_t next_ = 0;             // when following: moments entered
  AccessSchedule recording_;      // when not following
  size_t micro_batch_begin_ = 0;  // in recording_
  const Plan* plan_ = nullptr;
  size_t next_step_ = 0;           // index in plan_
  size_t first_ahead_ = 0;         // the first step that is not needed yet
  std::deque<uint64_t> left_out_;  // needs of the steps ahead that do not count
  uint64_t deviations_ = 0;
};

}  // namespace tidepool::trainer
