// The parameter side of the rCache: passes, operators, victims and prefetches. Gradients are in
// gradient_path.cpp.
#include "trainer/cache/parameter_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

bool ShareAGroup(const ChunkLayout& layout, Rank a, Rank b) {
  return std::any_of(layout.data_groups.begin(), layout.data_groups.end(),
                     [a, b](const std::vector<Rank>& members) {
                       return std::binary_search(members.begin(), members.end(), a) &&
                              std::binary_search(members.begin(), members.end(), b);
                     });
}

// Ranks that decide apart would wait for each other in different collectives.
Status CheckAlike(const ChunkLayout& layout, Rank rank, uint64_t rcache_bytes) {
  for (Rank other = 0; other < layout.world; ++other) {
    if (other == rank || !ShareAGroup(layout, rank, other)) continue;
    const bool has_room = layout.ResidentBytes(other) <= rcache_bytes;
    if (has_room && layout.AreAlike(rank, other) &&
        layout.BlocksIn(rank, rcache_bytes) == layout.BlocksIn(other, rcache_bytes))
      continue;
    return Status(ErrorId::kUsageError, "ranks " + std::to_string(rank) + " and " +
                                            std::to_string(other) +
                                            " share a data group, but their chunks are not alike, "
                                            "so that they would decide apart")
        .Fix(
            "give every rank as many parameters of its own, of the same sizes, and list the data "
            "groups that ranks share first");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ParameterCache>> ParameterCache::Create(CacheSetup setup) {
  const client::Attachment& attachment = setup.service->attachment();
  const ChunkLayout& layout = *setup.layout;
  const uint64_t smallest =
      layout.RcacheBytes(setup.rank, layout.EvictableChunks(setup.rank) > 0 ? 1 : 0);
  if (attachment.rcache_bytes < smallest) {
    return Status(ErrorId::kRcacheTooSmall, "an rCache of " + FormatBytes(attachment.rcache_bytes) +
                                                " has no room for the resident chunks (" +
                                                FormatBytes(layout.ResidentBytes(setup.rank)) +
                                                ") and one block (" +
                                                FormatBytes(layout.BlockBytes()) + ")")
        .Fix("give --rcache at least " + std::to_string(smallest));
  }
  TP_RETURN_IF_ERROR(CheckAlike(layout, setup.rank, attachment.rcache_bytes));
  EvictionPolicies& policies = setup.policies;
  if (!policies.recording)
    policies.recording = std::make_unique<RandomEviction>(setup.options.seed);
  if (!policies.left_order)
    policies.left_order =
        std::make_unique<LruEviction>(static_cast<uint32_t>(layout.chunks.size()));
  Pipeline pipeline = Pipeline::Open(
      {&layout, setup.rank, setup.service, setup.groups, setup.clock, setup.streams});
  return std::unique_ptr<ParameterCache>(new ParameterCache(std::move(setup), std::move(pipeline)));
}

ParameterCache::ParameterCache(CacheSetup setup, Pipeline pipeline)
    : setup_(std::move(setup)),
      layout_(*setup_.layout),
      table_(&layout_, setup_.rank, setup_.service->attachment().rcache,
             setup_.service->attachment().rcache_bytes),
      pipeline_(std::move(pipeline)),
      follower_(EvictableMask(layout_), table_.blocks()),
      states_(&layout_),
      entries_(layout_.chunks.size()),
      has_gradient_(layout_.parameters.size(), false) {
  for (ChunkId chunk = 0; chunk < layout_.chunks.size(); ++chunk) {
    entries_[chunk].multi_use = layout_.chunks[chunk].multi_use;
    if (!layout_.IsMember(chunk, setup_.rank)) continue;
    if (!layout_.chunks[chunk].frozen) mine_.push_back(chunk);
    const Collective* group = setup_.groups[layout_.chunks[chunk].data_group];
    TP_CHECK(
        layout_.ShardCount(chunk) == 1 || (group->world() == layout_.ShardCount(chunk) &&
                                           group->rank() == layout_.ShardIndex(chunk, setup_.rank)),
        "a data group's collective has the group's ranks in the layout's order");
  }
}

Status ParameterCache::Latch(Status status) {
  if (!status.ok() && status_.ok()) status_ = status;
  return status_;
}

Status ParameterCache::NotInPass(const char* call) {
  return Latch(Status(ErrorId::kChunkNotReady, std::string(call) + " was called outside a pass"));
}

uint64_t ParameterCache::SmallestRcacheBytes() const {
  return layout_.RcacheBytes(setup_.rank, BlocksNeeded());
}

Status ParameterCache::TooSmall(const std::string& reason) {
  const uint64_t bytes = SmallestRcacheBytes();
  return Latch(Status(ErrorId::kRcacheTooSmall,
                      reason + "; the smallest that works is " + std::to_string(bytes) +
                          " bytes (" + FormatBytes(bytes) + "): " + std::to_string(BlocksNeeded()) +
                          " blocks of " + FormatBytes(layout_.BlockBytes()) + " beside " +
                          FormatBytes(layout_.ResidentBytes(setup_.rank)) + " of resident chunks")
                   .Fix("give --rcache at least " + std::to_string(bytes)));
}

Status ParameterCache::BeginPass(PassKind kind, Version version) {
  if (!status_.ok()) return status_;
  // An abandoned step ends in a latched error; here somebody has forgotten a Release or a
  // FinishBackward.
  if (dry_) return TooSmall("the pass before found no room");
  const auto has_gradients = [](const Entry& entry) { return entry.gradient; };
  if (!pinned_.empty() || std::any_of(entries_.begin(), entries_.end(), has_gradients)) {
    return Latch(
        Status(ErrorId::kChunkNotReady,
               "a pass begins while operators or gradients of the one before still hold chunks"));
  }
  if (!has_version_ || version != version_) DropStale();
  for (const ChunkId chunk : table_.Placed()) states_.BeginPass(chunk);
  has_version_ = true;
  version_ = version;
  micro_batch_ = 0;
  in_pass_ = true;
  training_ = kind == PassKind::kTrain;
  const Status begun = follower_.Begin(kind, table_.Placed());
  if (!begun.ok()) return TooSmall(begun.what());
  separate_pass_ = training_ && !following() && setup_.options.separate_while_recording;
  // The server parks fetches of a version that it is still making, so the first chunks come as soon
  // as they are updated.
  PrefetchAhead(0);
  return Latch(pipeline_.Progress());
}

void ParameterCache::DropStale() {
  MarkUses();
  for (const ChunkId chunk : table_.Placed()) {
    if (layout_.chunks[chunk].frozen) continue;
    Unmap(chunk);
    table_.Give(chunk);
  }
}

Status ParameterCache::Acquire(std::span<const ChunkId> chunks) {
  if (!status_.ok()) return status_;
  if (!in_pass_) return NotInPass("Acquire");
  const auto is_pinned = [this](ChunkId chunk) { return entries_[chunk].pins > 0; };
  const bool nested = std::all_of(chunks.begin(), chunks.end(), is_pinned);
  // Pinned before anything is placed: no chunk of an operator may be the victim of another one.
  for (const ChunkId chunk : chunks) {
    if (entries_[chunk].pins++ == 0)
      pinned_.insert(std::lower_bound(pinned_.begin(), pinned_.end(), chunk), chunk);
  }
  // What an enclosing operator holds is there; the order of uses has nothing new.
  if (nested) return {};
  // Operators that follow each other on the same chunks share a mark: each is a fence in the
  // stream.
  if (!std::all_of(used_.begin(), used_.end(), is_pinned)) MarkUses();
  TP_RETURN_IF_ERROR(Enter(MomentKind::kUse, 0));
  for (const ChunkId chunk : pinned_) TP_RETURN_IF_ERROR(Demand(chunk));
  if (dry_) return {};
  // Before the wait below, so that the next chunks travel meanwhile.
  PrefetchAhead(follower_.position());
  for (const ChunkId chunk : chunks) TP_RETURN_IF_ERROR(HandOut(chunk));
  return {};
}

Status ParameterCache::Release(std::span<const ChunkId> chunks) {
  bool used = false;
  for (const ChunkId chunk : chunks) {
    TP_CHECK(entries_[chunk].pins > 0, "what is released was acquired");
    if (--entries_[chunk].pins > 0) continue;
    pinned_.erase(std::lower_bound(pinned_.begin(), pinned_.end(), chunk));
    if (!table_.has(chunk)) continue;
    if (std::find(used_.begin(), used_.end(), chunk) == used_.end()) used_.push_back(chunk);
    used = true;
  }
  if (used && pipeline_.Used()) MarkUses();
  return Progress();
}

void ParameterCache::MarkUses() {
  if (used_.empty()) return;
  const UseMark mark = TP_PLANTED("cache.uses_unmarked") ? 0 : pipeline_.Mark();
  for (const ChunkId chunk : used_) table_.set_last_use(chunk, mark);
  used_.clear();
}

Status ParameterCache::BeginUse(std::span<const ParameterId> parameters) {
  if (!status_.ok()) return status_;
  for (const ParameterId parameter : parameters) {
    if (separate_pass_ && has_gradient_[parameter]) KeepApart(layout_.parameters[parameter].chunk);
    if (dry_) continue;
    if (states_.state(parameter) == TensorState::kHoldAfterBwd) return GradientRead(parameter);
    TP_RETURN_IF_ERROR(Latch(states_.BeginUse(parameter)));
  }
  return {};
}

Status ParameterCache::EndUse(std::span<const ParameterId> parameters) {
  if (!status_.ok() || dry_) return status_;
  for (const ParameterId parameter : parameters)
    TP_RETURN_IF_ERROR(Latch(states_.EndUse(parameter)));
  return {};
}

Status ParameterCache::Progress() {
  return status_.ok() ? Latch(pipeline_.Progress()) : status_;
}

Status ParameterCache::AwaitTransfers() {
  if (!status_.ok() || TP_PLANTED("cache.prefetches_left_in_flight")) return status_;
  return Latch(pipeline_.WaitAll());
}

void ParameterCache::TakeMoves(std::vector<Move>* out) {
  out->insert(out->end(), moves_.begin(), moves_.end());
  moves_.clear();
}

CacheCounters ParameterCache::counters() const {
  CacheCounters counters = counters_;
  counters.deviations = follower_.deviations();
  counters.late_prefetches = pipeline_.late();
  counters.wait_ns = pipeline_.wait_ns();
  counters.bytes_h2d = pipeline_.bytes_h2d();
  counters.bytes_d2h = pipeline_.bytes_d2h();
  return counters;
}

Status ParameterCache::Enter(MomentKind kind, ChunkId subject) {
  moment_.kind = kind;
  moment_.subject = subject;
  moment_.chunks = pinned_;
  follower_.Enter(moment_);
  while (const PlanStep* step = follower_.TakeDueStep()) RunStep(*step, /*ahead=*/false);
  return status_;
}

void ParameterCache::RunStep(const PlanStep& step, bool ahead) {
  if (step.victim != kNoChunk) {
    Evict(step.victim, step.chunk);
  } else {
    table_.Take(step.chunk);
  }
  if (!step.fetch) return;
  StartFetch(step.chunk, follower_.UsesUntil(step));
  (ahead ? entries_[step.chunk].prefetched : entries_[step.chunk].demanded) = true;
  ++(ahead ? counters_.prefetches : counters_.misses);
}

void ParameterCache::PrefetchAhead(uint64_t horizon) {
  while (const PlanStep* step = follower_.TakeStepAhead(horizon, setup_.options.prefetch_depth))
    RunStep(*step, /*ahead=*/true);
}

void ParameterCache::StartFetch(ChunkId chunk, uint32_t uses_ahead) {
  table_.set_last_op(chunk, pipeline_.Fetch(chunk, table_.place(chunk), {version_, uses_ahead},
                                            table_.past(chunk)));
  const Status held = states_.ChangeChunk(chunk, TensorState::kHold);
  TP_CHECK(held.ok(), "a chunk that is fetched was nowhere");
}

void ParameterCache::Unmap(ChunkId chunk) {
  // A chunk that was never handed out is not known to the caller.
  if (entries_[chunk].mapped) moves_.push_back({chunk, nullptr});
  entries_[chunk].mapped = entries_[chunk].demanded = entries_[chunk].prefetched = false;
  const Status freed = states_.ChangeChunk(chunk, TensorState::kFree);
  TP_CHECK(freed.ok(), "no operator uses a chunk that leaves");
}

void ParameterCache::Evict(ChunkId victim, ChunkId successor) {
  MarkUses();
  ++counters_.evictions;
  Unmap(victim);
  table_.Replace(victim, successor);
}

Status ParameterCache::Place(ChunkId chunk) {
  if (table_.HasRoomFor(chunk)) {
    table_.Take(chunk);
    return {};
  }
  std::vector<ChunkId> candidates;
  for (const ChunkId cached : table_.cached()) {
    if (entries_[cached].pins == 0 && !entries_[cached].gradient) candidates.push_back(cached);
  }
  if (candidates.empty()) {
    GoDry();
    return {};
  }
  // Leaving the order means that the recorded next uses cannot be trusted; the recent past can.
  const EvictionPolicies& policies = setup_.policies;
  EvictionPolicy& policy = follower_.left_order() ? *policies.left_order : *policies.recording;
  const ChunkId victim = policy.Victim(candidates, follower_.position());
  TP_CHECK(std::binary_search(candidates.begin(), candidates.end(), victim),
           "a policy names one of its candidates");
  Evict(victim, chunk);
  return {};
}

// What the rest of the pass needs is known only when it has been gone through. Gradients are noted
// as in a step that keeps them apart.
void ParameterCache::GoDry() {
  dry_ = separate_pass_ = true;
}

void ParameterCache::BeginDryTraining() {
  TP_CHECK(dry_ && !training_, "an evaluation went dry");
  dry_blocks_ = follower_.BlocksNeeded();
  training_ = true;
  follower_.BeginAnew(PassKind::kTrain);
}

Status ParameterCache::Demand(ChunkId chunk) {
  for (const auto* policy : {&setup_.policies.recording, &setup_.policies.left_order})
    (*policy)->Used(chunk, follower_.position());
  if (dry_ || table_.has(chunk)) return {};
  TP_CHECK(!follower_.following(), "a plan brings every chunk in time");
  TP_RETURN_IF_ERROR(Place(chunk));
  if (dry_) return {};
  StartFetch(chunk, 0);
  entries_[chunk].demanded = true;
  ++counters_.misses;
  return {};
}

Status ParameterCache::HandOut(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  counters_.hits += !entry.demanded;
  const bool prefetched = entry.prefetched && !entry.demanded;
  entry.demanded = entry.prefetched = false;
  TP_RETURN_IF_ERROR(WaitForPlace(chunk, prefetched));
  if (!entry.mapped) moves_.push_back({chunk, table_.place(chunk)});
  entry.mapped = true;
  return {};
}

}  // namespace tidepool::trainer
