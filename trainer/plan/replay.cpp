#include "trainer/plan/replay.h"

#include <algorithm>
#include <deque>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

class Replayer {
 public:
  Replayer(const AccessSchedule& schedule, const ReplaySetup& setup, const NextUses& next,
           EvictionPolicy* policy)
      : schedule_(schedule), setup_(setup), next_(next), policy_(policy) {
    const size_t chunks = setup.evictable.size();
    present_.assign(chunks, false);
    pinned_.assign(chunks, false);
    submitted_.assign(chunks, 0);
    plan_.fetches_of_chunk.assign(chunks, 0);
    plan_.submits_of_chunk.assign(chunks, 0);
    for (const ChunkId chunk : setup.present) Add(chunk);
    // Blocks that are free from the start may be filled at once.
    free_.assign(setup.blocks - std::min<uint64_t>(setup.blocks, cached_.size()), 0);
  }

  Result<Plan> Run() {
    for (position_ = 0; position_ < schedule_.moments.size(); ++position_)
      TP_RETURN_IF_ERROR(Step(schedule_.moments[position_]));
    if (!setup_.budgets.empty() && !TP_PLANTED("plan.starts_above_budget")) StartWithinBudgets();
    return std::move(plan_);
  }

 private:
  Status Step(const Moment& moment) {
    held_ = &moment.chunks;
    budget_ = setup_.budgets.empty() ? setup_.blocks : setup_.budgets[position_];
    TP_RETURN_IF_ERROR(Shed(moment));
    for (const ChunkId chunk : moment.chunks) TP_RETURN_IF_ERROR(Need(chunk));

    switch (moment.kind) {
      case MomentKind::kUse: break;
      case MomentKind::kGradient: TP_RETURN_IF_ERROR(Need(moment.subject)); break;
      case MomentKind::kBorrow: TP_RETURN_IF_ERROR(Borrow(moment.subject)); break;
      case MomentKind::kSubmit: break;
    }

    in_use_.push_back(cached_.size());
    if (moment.kind == MomentKind::kSubmit) {
      Submit(moment.subject);
    } else if (moment.kind != MomentKind::kUse) {
      pinned_[moment.subject] = true;
    }
    return {};
  }

  // Evicts what is above the moment's budget, but not what the moment itself needs.
  Status Shed(const Moment& moment) {
    if (moment.kind != MomentKind::kUse) kept_ = moment.subject;
    while (cached_.size() > budget_) {
      PlanStep step{position_, position_, kNoChunk, kNoChunk, /*fetch=*/false};
      TP_RETURN_IF_ERROR(Evict(&step));
      step.earliest = position_;
      plan_.steps.push_back(step);
      free_.push_back(position_);
    }
    kept_ = kNoChunk;
    return {};
  }

  // A step into a free block may start early only while its block is within every budget on the
  // way. One that replaces a victim changes no number of blocks.
  void StartWithinBudgets() {
    for (PlanStep& step : plan_.steps) {
      if (!step.fetch || step.victim != kNoChunk || !setup_.evictable[step.chunk]) continue;
      uint64_t begin = step.needed_at;
      while (begin > step.earliest && in_use_[begin - 1] < setup_.budgets[begin - 1])
        ++in_use_[--begin];
      step.earliest = begin;
    }
  }

  // The policy is told of hits, too: least recently used needs them.
  Status Need(ChunkId chunk) {
    policy_->Used(chunk, position_);
    if (present_[chunk]) return {};
    TP_RETURN_IF_ERROR(TakeBlock(chunk, /*fetch=*/true));
    ++plan_.fetches;
    ++plan_.fetches_of_chunk[chunk];
    return {};
  }

  Status Borrow(ChunkId chunk) {
    if (present_[chunk]) return {};
    return TakeBlock(chunk, /*fetch=*/false);
  }

  Status TakeBlock(ChunkId chunk, bool fetch) {
    PlanStep step{position_, position_, chunk, kNoChunk, fetch};
    if (!setup_.evictable[chunk]) {
      step.earliest = 0;
    } else if (!free_.empty() && cached_.size() < budget_) {
      step.earliest = free_.front();
      free_.pop_front();
    } else {
      TP_RETURN_IF_ERROR(Evict(&step));
    }
    // A chunk cannot return before its own gradients have left. Taking a block for gradients early
    // would only keep parameters out.
    step.earliest = fetch ? std::max(step.earliest, submitted_[chunk]) : position_;
    plan_.steps.push_back(step);
    Add(chunk);
    return {};
  }

  Status Evict(PlanStep* step) {
    std::vector<ChunkId> candidates;
    for (const ChunkId chunk : cached_) {
      const bool held = std::binary_search(held_->begin(), held_->end(), chunk);
      if (!pinned_[chunk] && !held && chunk != kept_) candidates.push_back(chunk);
    }

    if (candidates.empty()) {
      const uint64_t needed = SmallestRcache(schedule_, setup_.evictable);
      return Status(ErrorId::kRcacheTooSmall, "this order of use needs " + std::to_string(needed) +
                                                  " rCache blocks, there are " +
                                                  std::to_string(budget_));
    }

    step->victim = policy_->Victim(candidates, position_);
    step->earliest = next_.EndOfUseBefore(step->victim, position_);
    Remove(step->victim);
    ++plan_.evictions;
    return {};
  }

  void Submit(ChunkId chunk) {
    ++plan_.submits;
    ++plan_.submits_of_chunk[chunk];
    pinned_[chunk] = false;
    Remove(chunk);
    submitted_[chunk] = position_ + 1;
    if (setup_.evictable[chunk]) free_.push_back(position_ + 1);
  }

  void Add(ChunkId chunk) {
    present_[chunk] = true;
    if (setup_.evictable[chunk])
      cached_.insert(std::lower_bound(cached_.begin(), cached_.end(), chunk), chunk);
  }

  void Remove(ChunkId chunk) {
    present_[chunk] = false;
    if (setup_.evictable[chunk])
      cached_.erase(std::lower_bound(cached_.begin(), cached_.end(), chunk));
  }

  const AccessSchedule& schedule_;
  const ReplaySetup& setup_;
  const NextUses& next_;
  EvictionPolicy* policy_;
  Plan plan_;
  uint64_t position_ = 0, budget_ = 0;
  ChunkId kept_ = kNoChunk;       // by the moment that sheds others
  std::vector<uint64_t> in_use_;  // by moment: blocks, before gradients leave
  const std::vector<ChunkId>* held_ = nullptr;
  std::vector<bool> present_, pinned_;  // by ChunkId
  // By ChunkId: the moment after its last kSubmit, 0 before the first.
  std::vector<uint64_t> submitted_;
  std::vector<ChunkId> cached_;  // evictable and present, ascending
  // For each free block the moment since which it is free; FIFO.
  std::deque<uint64_t> free_;
};

}  // namespace

Result<Plan> Replay(const AccessSchedule& schedule, const ReplaySetup& setup,
                    EvictionPolicy* policy) {
  const NextUses next(schedule, static_cast<uint32_t>(setup.evictable.size()));
  return Replayer(schedule, setup, next, policy).Run();
}

Result<Plan> BeladySimulate(const AccessSchedule& schedule, const ReplaySetup& setup) {
  const NextUses next(schedule, static_cast<uint32_t>(setup.evictable.size()));
  BeladyEviction policy(&next);
  return Replayer(schedule, setup, next, &policy).Run();
}

StepTraffic TrafficOf(const Plan& plan, const ChunkLayout& layout) {
  StepTraffic traffic;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    traffic.bytes_h2d += plan.fetches_of_chunk[chunk] * layout.ShardBytes(chunk);
    traffic.bytes_d2h += plan.submits_of_chunk[chunk] * layout.ShardBytes(chunk);
  }
  return traffic;
}

}  // namespace tidepool::trainer
