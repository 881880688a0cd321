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

// Ranks that decide differently would wait for each other in different collectives.
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

Status CheckGroups(const CacheSetup& setup) {
  const ChunkLayout& layout = *setup.layout;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    if (!layout.IsMember(chunk, setup.rank) || layout.ShardCount(chunk) == 1) continue;
    const uint32_t number = layout.chunks[chunk].data_group;
    const Collective* group = setup.groups[number];
    if (group == nullptr) {
      return Status(ErrorId::kUsageError, "data group " + std::to_string(number) + " has " +
                                              std::to_string(layout.ShardCount(chunk)) +
                                              " ranks, and no collective is given for it")
          .Fix("give EngineParts::groups one for each data group of several ranks");
    }

    TP_CHECK(group->world() == layout.ShardCount(chunk) &&
                 group->rank() == layout.ShardIndex(chunk, setup.rank),
             "a data group's collective has the group's ranks in the layout's order");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ParameterCache>> ParameterCache::Create(CacheSetup setup) {
  const client::Attachment& attachment = setup.service->attachment();
  const ChunkLayout& layout = *setup.layout;
  const uint64_t tail = setup.options.tail_bytes;
  const uint64_t smallest =
      layout.RcacheBytes(setup.rank, layout.EvictableChunks(setup.rank) > 0 ? 1 : 0) + tail;

  if (attachment.rcache_bytes < smallest) {
    return Status(ErrorId::kRcacheTooSmall, "an rCache of " + FormatBytes(attachment.rcache_bytes) +
                                                " has no room for the resident chunks (" +
                                                FormatBytes(layout.ResidentBytes(setup.rank)) +
                                                ") and one block (" +
                                                FormatBytes(layout.BlockBytes()) + ")")
        .Fix("give --rcache at least " + std::to_string(smallest));
  }

  TP_RETURN_IF_ERROR(CheckAlike(layout, setup.rank, attachment.rcache_bytes - tail));
  setup.groups.resize(layout.data_groups.size());
  TP_RETURN_IF_ERROR(CheckGroups(setup));
  return std::unique_ptr<ParameterCache>(new ParameterCache(std::move(setup)));
}

ParameterCache::ParameterCache(CacheSetup setup)
    : service_(setup.service),
      layout_(*setup.layout),
      chunks_({setup.layout, setup.rank, setup.service, std::move(setup.groups), setup.clock,
               setup.streams, setup.options.tail_bytes, setup.options.exchange,
               setup.options.f32_sums}),
      pass_(&chunks_, setup.rank, setup.options, std::move(setup.policies), std::move(setup.limit)),
      gradients_(&chunks_, &pass_, setup.rank) {}

Status ParameterCache::Latch(Status status) {
  if (!status.ok() && status_.ok()) status_ = std::move(status);
  return status_;
}

Status ParameterCache::NotInPass(const char* call) {
  return Latch(Status(ErrorId::kChunkNotReady, std::string(call) + " was called outside a pass"));
}

Status ParameterCache::BeginPass(PassKind kind, Version version) {
  if (!status_.ok()) return status_;
  gradients_.BeginPass();
  return Latch(pass_.Begin(kind, version));
}

// --- operators ---

Status ParameterCache::Acquire(std::span<const ChunkId> chunks) {
  if (!status_.ok()) return status_;
  if (!pass_.open()) return NotInPass("Acquire");
  // Pins before placing anything: no chunk of an operator may be the victim of another one. The
  // chunks of an enclosing operator are there already.
  if (!chunks_.Pin(chunks)) return {};
  return Latch(pass_.Use(chunks));
}

Status ParameterCache::Release(std::span<const ChunkId> chunks) {
  chunks_.Unpin(chunks);
  return Progress();
}

Status ParameterCache::BeginUse(std::span<const ParameterId> parameters) {
  return status_.ok() ? Latch(gradients_.BeginUse(parameters)) : status_;
}

Status ParameterCache::EndUse(std::span<const ParameterId> parameters) {
  if (!status_.ok() || pass_.trace_only()) return status_;
  for (const ParameterId parameter : parameters)
    TP_RETURN_IF_ERROR(Latch(chunks_.states()->EndUse(parameter)));
  return {};
}

bool ParameterCache::RouteUnits(const UnitUses& uses) {
  if (!status_.ok() || !pass_.open() || pass_.trace_only()) return false;
  const bool leaves_out = pass_.Route(uses);
  return Progress().ok() && leaves_out;
}

Status ParameterCache::PassBy(uint32_t unit) {
  if (!status_.ok()) return status_;
  if (!pass_.open()) return NotInPass("PassBy");
  return Latch(gradients_.PassBy(unit));
}

Status ParameterCache::Progress() {
  return status_.ok() ? Latch(chunks_.Progress()) : status_;
}

Status ParameterCache::AwaitTransfers() {
  if (!status_.ok() || TP_PLANTED("cache.prefetches_left_in_flight")) return status_;
  return Latch(chunks_.AwaitTransfers());
}

CacheCounters ParameterCache::counters() const {
  CacheCounters counters = chunks_.counters();
  counters.unforeseen = pass_.unforeseen();
  counters.memory_most = pass_.memory().most();
  counters.deviations = pass_.follower().deviations();
  return counters;
}

// --- gradients ---

Result<std::byte*> ParameterCache::GradientPlace(ParameterId parameter) {
  if (!status_.ok()) return status_;
  if (!pass_.training()) return NotInPass("GradientPlace");
  return Latch(gradients_.Place(parameter));
}

Status ParameterCache::GradientDone(ParameterId parameter) {
  return status_.ok() ? Latch(gradients_.Done(parameter)) : status_;
}

Result<SeparateBlock> ParameterCache::BorrowBlock(ChunkId chunk) {
  if (!status_.ok()) return status_;
  if (!pass_.training()) return NotInPass("BorrowBlock");
  return Latch(gradients_.Borrow(chunk));
}

Status ParameterCache::SubmitBorrowed(ChunkId chunk) {
  return status_.ok() ? Latch(gradients_.SubmitBorrowed(chunk)) : status_;
}

Status ParameterCache::FinishBackward(uint32_t micro_batch) {
  if (!status_.ok()) return status_;
  if (!pass_.training() || micro_batch != gradients_.micro_batch())
    return NotInPass("FinishBackward of another micro-batch");
  return Latch(gradients_.FinishBackward());
}

Result<OpId> ParameterCache::SubmitSum(ChunkId chunk, std::byte* place) {
  if (!status_.ok()) return status_;
  if (!pass_.training()) return NotInPass("SubmitSum");
  if (pass_.trace_only()) return OpId{0};
  const OpId op = chunks_.SubmitSum(chunk, place, pass_.version());
  TP_RETURN_IF_ERROR(Progress());
  return op;
}

Status ParameterCache::AwaitSum(OpId op) {
  return status_.ok() ? Latch(chunks_.Await(op)) : status_;
}

Status ParameterCache::FinishStep() {
  if (!status_.ok()) return status_;
  if (!pass_.training()) return NotInPass("FinishStep");
  TP_RETURN_IF_ERROR(Latch(chunks_.FinishTransfers()));
  const bool is_new = pass_.End();
  TP_RETURN_IF_ERROR(Latch(pass_.LearnBudgets()));
  if (order_told_ && !is_new) return {};
  order_told_ = true;

  // Declares a new order, recorded or foreseen: updates then run in the order in which the next
  // forward needs them.
  std::vector<ChunkId> order = FirstUseOrder(schedule(PassKind::kTrain));
  std::erase_if(order, [this](ChunkId chunk) { return layout_.chunks[chunk].frozen; });
  if (order.empty()) return {};
  return Latch(service_->DeclareSchedule(order));
}

}  // namespace tidepool::trainer
