#include "trainer/cache/pass_follower.h"

#include <algorithm>
#include <utility>

namespace tidepool::trainer {

PassFollower::PassFollower(std::vector<bool> evictable, uint64_t blocks)
    : evictable_(std::move(evictable)), blocks_(blocks), usable_(blocks) {}

void PassFollower::Declare(PassKind kind, AccessSchedule schedule) {
  schedules_[static_cast<size_t>(kind)] = std::move(schedule);
  plans_[static_cast<size_t>(kind)].clear();
  budgets_[static_cast<size_t>(kind)].clear();
}

void PassFollower::SetBudgets(PassKind kind, std::vector<uint64_t> budgets) {
  budgets_[static_cast<size_t>(kind)] = std::move(budgets);
  plans_[static_cast<size_t>(kind)].clear();
  plan_ = nullptr;
}

void PassFollower::SetUsable(uint64_t usable) {
  usable_ = usable;
  for (auto& plans : plans_) plans.clear();
  plan_ = nullptr;
}

uint64_t PassFollower::Budget() const {
  if (!following() || !has_budgets(kind_)) return usable_;
  return budgets_[static_cast<size_t>(kind_)][next_ > 0 ? next_ - 1 : 0];
}

Status PassFollower::Begin(PassKind kind, std::vector<ChunkId> present) {
  End();
  kind_ = kind;
  open_ = true;
  next_ = next_step_ = first_ahead_ = 0;
  left_out_.clear();
  recording_.moments.clear();
  micro_batch_begin_ = 0;
  plan_ = nullptr;

  mode_ = current().moments.empty() ? Mode::kRecord : Mode::kFollow;
  if (mode_ == Mode::kRecord) return {};
  TP_ASSIGN_OR_RETURN(plan_, PlanFor(std::move(present)));
  return {};
}

Result<const Plan*> PassFollower::PlanFor(std::vector<ChunkId> present) {
  std::vector<KeptPlan>& kept = plans_[static_cast<size_t>(kind_)];
  const auto alike = [&present](const KeptPlan& one) { return one.present == present; };
  const auto found = std::find_if(kept.begin(), kept.end(), alike);
  if (found != kept.end()) {
    std::rotate(kept.begin(), found, found + 1);
    return static_cast<const Plan*>(kept.front().plan.get());
  }

  ++simulations_;
  ReplaySetup setup{evictable_, blocks_, present, budgets_[static_cast<size_t>(kind_)]};
  if (setup.budgets.empty() && usable_ < blocks_) {
    setup.budgets = trainer::BlocksNeeded(current(), evictable_);
    for (uint64_t& blocks : setup.budgets) blocks = std::max(blocks, usable_);
  }
  TP_ASSIGN_OR_RETURN(Plan plan, BeladySimulate(current(), setup));
  if (kept.size() == kPlansKept) kept.pop_back();
  kept.insert(kept.begin(), KeptPlan{std::move(present), std::make_unique<Plan>(std::move(plan))});
  return static_cast<const Plan*>(kept.front().plan.get());
}

void PassFollower::BeginAnew(PassKind kind) {
  kind_ = kind;
  mode_ = Mode::kRecord;
  open_ = true;
  recording_.moments.clear();
  micro_batch_begin_ = 0;
  plan_ = nullptr;
}

bool PassFollower::End() {
  const bool is_new = open_ && mode_ != Mode::kFollow && !recording_.moments.empty();
  if (is_new) Declare(kind_, std::exchange(recording_, {}));
  open_ = false;
  return is_new;
}

void PassFollower::Enter(const Moment& moment) {
  if (mode_ == Mode::kFollow) {
    const auto& moments = current().moments;
    if (moment.kind == MomentKind::kUse && next_ > 0 && moments[next_ - 1] == moment) return;
    if (next_ < moments.size() && moments[next_] == moment) {
      ++next_;
      return;
    }
    // The moments entered so far belong to this pass too: the new order continues from them.
    ++deviations_;
    mode_ = Mode::kLeftOrder;
    plan_ = nullptr;
    recording_.moments.assign(moments.begin(),
                              moments.begin() + static_cast<std::ptrdiff_t>(next_));
  }
  auto& recorded = recording_.moments;
  if (moment.kind == MomentKind::kUse && !recorded.empty() && recorded.back() == moment) return;
  recorded.push_back(moment);
}

void PassFollower::WithdrawGradients(ChunkId chunk) {
  if (following()) return;
  auto& recorded = recording_.moments;
  const auto begin =
      recorded.begin() + static_cast<std::ptrdiff_t>(std::min(micro_batch_begin_, recorded.size()));
  recorded.erase(std::remove_if(begin, recorded.end(),
                                [chunk](const Moment& m) {
                                  return m.kind != MomentKind::kUse && m.subject == chunk;
                                }),
                 recorded.end());
  // Adjacent equal uses become one moment, as if the gradients had never been recorded.
  const auto same_use = [](const Moment& a, const Moment& b) {
    return a.kind == MomentKind::kUse && a == b;
  };
  recorded.erase(std::unique(begin, recorded.end(), same_use), recorded.end());
}

const PlanStep* PassFollower::TakeDueStep() {
  if (plan_ == nullptr || next_step_ == plan_->steps.size()) return nullptr;
  const PlanStep& step = plan_->steps[next_step_];
  if (step.needed_at >= next_) return nullptr;
  ++next_step_;
  return &step;
}

const PlanStep* PassFollower::TakeStepAhead(uint64_t horizon, uint64_t depth) {
  const PlanStep* const step = SeeStepAhead(horizon, depth);
  if (step != nullptr) ++next_step_;
  return step;
}

const PlanStep* PassFollower::SeeStepAhead(uint64_t horizon, uint64_t depth) {
  if (plan_ == nullptr || next_step_ == plan_->steps.size()) return nullptr;
  while (first_ahead_ < next_step_ && plan_->steps[first_ahead_].needed_at < next_) ++first_ahead_;
  while (!left_out_.empty() && left_out_.front() < next_) left_out_.pop_front();
  const PlanStep& step = plan_->steps[next_step_];
  const uint64_t ahead = next_step_ - first_ahead_ - left_out_.size();
  // A block for gradients only is taken when it is needed.
  return !step.fetch || step.earliest > horizon || ahead >= depth ? nullptr : &step;
}

const Moment* PassFollower::Coming(uint64_t ahead) const {
  if (!following() || next_ + ahead >= current().moments.size()) return nullptr;
  return &current().moments[next_ + ahead];
}

const Moment* PassFollower::Present() const {
  return following() && next_ > 0 ? &current().moments[next_ - 1] : nullptr;
}

uint32_t PassFollower::UsesUntil(const PlanStep& step) const {
  const uint64_t uses = step.needed_at + 1 - std::min(step.needed_at + 1, next_);
  return static_cast<uint32_t>(std::min<uint64_t>(uses, UINT32_MAX));
}

uint64_t PassFollower::BlocksNeeded() const {
  return SmallestRcache(following() ? current() : recording_, evictable_);
}

}  // namespace tidepool::trainer
