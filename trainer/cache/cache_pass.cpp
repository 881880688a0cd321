#include "trainer/cache/cache_pass.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

EvictionPolicies WithDefaults(EvictionPolicies policies, uint64_t seed, size_t chunks) {
  if (!policies.recording) policies.recording = std::make_unique<RandomEviction>(seed);
  if (!policies.left_order)
    policies.left_order = std::make_unique<LruEviction>(static_cast<uint32_t>(chunks));
  return policies;
}

MemoryRoom RoomOf(const CachedChunks& chunks, Rank rank) {
  return {.resident = chunks.layout().ResidentBytes(rank),
          .block_bytes = chunks.layout().BlockBytes(),
          .blocks = chunks.blocks()};
}

}  // namespace

CachePass::CachePass(CachedChunks* chunks, Rank rank, const CacheOptions& options,
                     EvictionPolicies policies, MemoryLimit limit)
    : chunks_(chunks),
      layout_(chunks->layout()),
      rank_(rank),
      options_(options),
      policies_(WithDefaults(std::move(policies), options.seed, layout_.chunks.size())),
      follower_(EvictableMask(layout_), chunks->blocks()),
      routing_(layout_),
      memory_(std::move(limit), RoomOf(*chunks, rank)) {
  if (memory_.on()) follower_.SetUsable(memory_.WarmUp());
}

void CachePass::ExpectOthers(uint64_t bytes) {
  memory_.Expect(bytes);
  if (memory_.on()) follower_.SetUsable(memory_.WarmUp());
}

uint64_t CachePass::SmallestRcacheBytes() const {
  return layout_.RcacheBytes(rank_, BlocksNeeded());
}

Status CachePass::TooSmall(const std::string& reason) const {
  const uint64_t bytes = SmallestRcacheBytes();
  return Status(ErrorId::kRcacheTooSmall,
                reason + "; the smallest that works is " + std::to_string(bytes) + " bytes (" +
                    FormatBytes(bytes) + "): " + std::to_string(BlocksNeeded()) + " blocks of " +
                    FormatBytes(layout_.BlockBytes()) + " beside " +
                    FormatBytes(layout_.ResidentBytes(rank_)) + " of resident chunks")
      .Fix("give --rcache at least " + std::to_string(bytes));
}

Status CachePass::Begin(PassKind kind, Version version) {
  // The cache keeps the error of an abandoned step; here a caller has forgotten a Release or a
  // FinishBackward.
  if (trace_only_) return TooSmall("the pass before found no room");
  if (chunks_->AnyHeld()) {
    return Status(ErrorId::kChunkNotReady,
                  "a pass begins while operators or gradients of the one before still hold chunks");
  }

  chunks_->BeginPass(/*stale=*/!has_version_ || version != version_);
  has_version_ = true;
  version_ = version;
  open_ = true;
  training_ = kind == PassKind::kTrain;
  BeginRouting();
  memory_.BeginPass(chunks_->blocks_with_memory());
  const Status begun = follower_.Begin(kind, chunks_->Placed());
  if (!begun.ok()) return TooSmall(begun.what());
  separate_ = training_ && !follower_.following() && options_.separate_while_recording;

  KeepBudget();

  // The server parks fetches of a version that it is still making, so the first chunks arrive as
  // soon as they are updated.
  PrefetchUntil(0);
  return chunks_->Progress();
}

void CachePass::BeginRouting() {
  routing_.Forget();
  passed_by_.clear();
  left_out_at_begin_.clear();
  if (!routing_.any()) return;
  for (const ChunkId chunk : chunks_->Placed()) {
    if (chunks_->is_left_out(chunk)) left_out_at_begin_.push_back(chunk);
  }
}

bool CachePass::End() {
  EndPeriod();
  // Nobody measures what is used between two passes.
  if (memory_.on()) chunks_->Trim(follower_.usable(), memory_.limit().release);
  open_ = false;
  return follower_.End();
}

Status CachePass::LearnBudgets() {
  if (!memory_.on() || !follower_.following() || follower_.has_budgets(PassKind::kTrain)) return {};
  const std::vector<uint64_t> needs =
      trainer::BlocksNeeded(follower_.schedule(PassKind::kTrain), EvictableMask(layout_));
  TP_ASSIGN_OR_RETURN(std::vector<uint64_t> budgets, memory_.Budgets(needs));
  if (budgets.empty()) return {};

  // For passes of which no moment is known: what fits at any moment of this one.
  follower_.SetUsable(*std::min_element(budgets.begin(), budgets.end()));
  follower_.SetBudgets(PassKind::kTrain, std::move(budgets));
  return {};
}

void CachePass::EndPeriod() {
  if (!memory_.on()) return;
  const uint64_t moment = follower_.entered() ? follower_.position() : 0;
  memory_.EndPeriod(moment, chunks_->blocks_with_memory());
}

void CachePass::KeepBudget() {
  if (!memory_.on()) return;
  // A plan has its own evictions.
  while (!follower_.following() && chunks_->blocks_in_use() > follower_.Budget()) {
    const std::vector<ChunkId> candidates = chunks_->Candidates();
    if (candidates.empty()) break;
    chunks_->Shed(policies_.left_order->Victim(candidates, 0));
    ++unforeseen_;
  }
  chunks_->Trim(follower_.Budget(), memory_.limit().release);
}

Status CachePass::Use(std::span<const ChunkId> chunks) {
  Enter(MomentKind::kUse, 0);
  for (const ChunkId chunk : chunks_->pinned()) Demand(chunk);
  if (trace_only_) return {};

  // Before the wait below, so that the next chunks are in flight meanwhile.
  PrefetchAhead();
  for (const ChunkId chunk : chunks) TP_RETURN_IF_ERROR(chunks_->HandOut(chunk));
  return {};
}

void CachePass::Enter(MomentKind kind, ChunkId subject) {
  moment_.kind = kind;
  moment_.subject = subject;
  moment_.chunks = chunks_->pinned();
  EndPeriod();
  follower_.Enter(moment_);
  while (const PlanStep* step = follower_.TakeDueStep()) RunStep(*step, /*ahead=*/false);
  KeepBudget();
}

void CachePass::RunStep(const PlanStep& step, bool ahead) {
  if (step.chunk == kNoChunk) return chunks_->Shed(step.victim);

  if (step.victim != kNoChunk) {
    chunks_->Evict(step.victim, step.chunk);
  } else {
    chunks_->Take(step.chunk);
  }
  if (!step.fetch) return;
  if (!options_.leaves_out || !routing_.MayBeLeftOut(step.chunk))
    return chunks_->Fetch(step.chunk, {version_, follower_.UsesUntil(step)}, ahead);
  chunks_->LeaveOut(step.chunk);
  if (ahead && routing_.IsQuiet(step.chunk)) follower_.NoteLeftOut(step);
}

void CachePass::PrefetchUntil(uint64_t horizon) {
  while (const PlanStep* step = follower_.TakeStepAhead(horizon, options_.prefetch_depth))
    RunStep(*step, /*ahead=*/true);
  // Those start before their blocks' moments, so outside the budgets.
  if (routing_.any() && !memory_.on() && follower_.Present() != nullptr) PrefetchPastQuiet(horizon);
}

void CachePass::PrefetchPastQuiet(uint64_t horizon) {
  uint64_t quiet = horizon;
  const uint64_t entered = follower_.position() + 1;
  for (const Moment* coming = follower_.Coming(quiet + 1 - entered);
       coming != nullptr && routing_.IsQuiet(*coming);
       coming = follower_.Coming(quiet + 1 - entered))
    ++quiet;
  if (quiet == horizon) return;

  const PlanStep* step = follower_.SeeStepAhead(quiet, options_.prefetch_depth);
  while (step != nullptr && MayStartEarly(*step)) {
    RunStep(*follower_.TakeStepAhead(quiet, options_.prefetch_depth), /*ahead=*/true);
    step = follower_.SeeStepAhead(quiet, options_.prefetch_depth);
  }
}

// The present moment may last: an operator on the same chunks is no new one.
bool CachePass::MayStartEarly(const PlanStep& step) const {
  if (chunks_->has(step.chunk)) return false;
  if (step.victim == kNoChunk) return chunks_->HasRoomFor(step.chunk);
  const std::vector<ChunkId>& present = follower_.Present()->chunks;
  return chunks_->MayEvict(step.victim) &&
         !std::binary_search(present.begin(), present.end(), step.victim);
}

bool CachePass::Route(const UnitUses& uses) {
  if (!options_.leaves_out || !follower_.following()) return false;
  routing_.Tell(uses);

  for (size_t i = 0; i < uses.units.size(); ++i) {
    if (!(*uses.used)[i] || options_.prefetch_depth == 0) continue;
    for (const ChunkId chunk : routing_.ChunksOf(uses.units[i])) {
      if (chunks_->has(chunk) && chunks_->is_left_out(chunk))
        chunks_->Fetch(chunk, {version_, 0}, /*ahead=*/true);
    }
  }

  if (follower_.Present() != nullptr) PrefetchAhead();
  return true;
}

const Moment* CachePass::NextLeftOut(uint32_t unit) const {
  const Moment* next = follower_.Coming(0);
  return next != nullptr && routing_.IsOf(*next, unit) ? next : nullptr;
}

void CachePass::PassBy(const Moment& moment) {
  EndPeriod();
  follower_.Enter(moment);
  while (const PlanStep* step = follower_.TakeDueStep()) RunStep(*step, /*ahead=*/false);
  KeepBudget();
  passed_by_.push_back(follower_.position());
}

std::vector<GroupTraffic> CachePass::PlannedTraffic(bool zeros_move) const {
  if (follower_.plan() == nullptr) return {};
  const PassKind kind = training_ ? PassKind::kTrain : PassKind::kEvaluation;
  return GroupTrafficOf(*follower_.plan(), layout_, options_.exchange,
                        {&follower_.schedule(kind), passed_by_, left_out_at_begin_, zeros_move});
}

void CachePass::Demand(ChunkId chunk) {
  for (const auto* policy : {&policies_.recording, &policies_.left_order})
    (*policy)->Used(chunk, follower_.position());
  if (trace_only_) return;
  if (chunks_->has(chunk)) {
    if (chunks_->is_left_out(chunk)) chunks_->Fetch(chunk, {version_, 0}, /*ahead=*/false);
    return;
  }
  TP_CHECK(!follower_.following(), "a plan brings every chunk in time");
  if (Place(chunk)) chunks_->Fetch(chunk, {version_, 0}, /*ahead=*/false);
}

bool CachePass::Place(ChunkId chunk) {
  const bool has_room = chunks_->HasRoomFor(chunk);
  const bool in_budget = !memory_.on() || layout_.chunks[chunk].resident ||
                         chunks_->blocks_in_use() < follower_.Budget();
  if (has_room && in_budget) {
    chunks_->Take(chunk);
    return true;
  }

  const std::vector<ChunkId> candidates = chunks_->Candidates();
  // The need of an order that is not known yet may be larger than what it should take.
  if (candidates.empty() && has_room) {
    chunks_->Take(chunk);
    return true;
  }
  if (candidates.empty()) {
    // The need of the rest of the pass is known only at its end. Gradients are recorded as in a
    // step that keeps them separate.
    trace_only_ = separate_ = true;
    return false;
  }

  // After a deviation the recorded next uses cannot be trusted; the recent past can.
  EvictionPolicy& policy = follower_.left_order() ? *policies_.left_order : *policies_.recording;
  const ChunkId victim = policy.Victim(candidates, follower_.position());
  TP_CHECK(std::binary_search(candidates.begin(), candidates.end(), victim),
           "a policy names one of its candidates");
  chunks_->Evict(victim, chunk);
  ++unforeseen_;
  return true;
}

void CachePass::BeginDryTraining() {
  TP_CHECK(trace_only_ && !training_, "an evaluation became trace-only");
  trace_only_blocks_ = follower_.BlocksNeeded();
  training_ = true;
  follower_.BeginAnew(PassKind::kTrain);
}

}  // namespace tidepool::trainer
