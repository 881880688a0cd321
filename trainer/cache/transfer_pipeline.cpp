#include "trainer/cache/transfer_pipeline.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

// Of the service's tickets some are left to the trainer itself (end of step, weights).
constexpr uint32_t kTicketsUsed = client::kTicketsMax - 32;

}  // namespace

TransferPipeline::TransferPipeline(const ChunkLayout* layout, Rank rank, client::ChunkService* service, std::vector<Collective*> groups)
    : layout_(layout), rank_(rank), service_(service), groups_(std::move(groups)) {}

TransferPipeline::OpId TransferPipeline::Add(Op op) {
  op.id = first_ + ops_.size();
  ops_.push_back(op);
  if (status_.ok()) Advance(&ops_.back());
  return op.id;
}

TransferPipeline::OpId TransferPipeline::Fetch(ChunkId chunk, std::byte* block, Version version, OpId after) {
  return Add({0, chunk, true, 0, version, block, after, Stage::kQueued, 0});
}

TransferPipeline::OpId TransferPipeline::Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch) {
  return Add({0, chunk, false, micro_batch, version, block, 0, Stage::kTurn, 0});
}

Collective* TransferPipeline::GroupOf(const Op& op) const {
  return groups_[layout_->chunks[op.chunk].data_group];
}

bool TransferPipeline::Latch(Status status) {
  if (status.ok()) return false;
  if (status_.ok()) status_ = std::move(status);
  return true;
}

bool TransferPipeline::StartAtServer(Op* op) {
  if (op->fetch && !Done(op->after)) return false;
  if (at_server_ >= kTicketsUsed) return false;
  const uint64_t elements = layout_->ShardElements(op->chunk), index = layout_->ShardIndex(op->chunk, rank_);
  client::Range range;
  range.chunk = op->chunk;
  range.element_begin = index * elements;
  range.element_count = elements;
  range.rcache_offset = static_cast<uint64_t>(op->block - service_->attachment().rcache) + index * layout_->ShardBytes(op->chunk);
  Result<client::Ticket> ticket =
      op->fetch ? service_->StartFetch(range, op->version) : service_->StartSubmitGradient(range, op->version, op->micro_batch);
  if (Latch(ticket.status())) return false;
  op->ticket = ticket.value();
  op->stage = Stage::kAtServer;
  ++at_server_;
  return true;
}

bool TransferPipeline::StartInGroup(Op* op) {
  if (op->id != next_turn_) return false;
  ++next_turn_;
  op->stage = Stage::kInGroup;
  op->ticket = 0;
  // A group of one rank has nothing to exchange, but keeps its turn.
  Collective* group = GroupOf(*op);
  if (layout_->ShardCount(op->chunk) > 1) {
    const BlockView view{op->block, layout_->ShardElements(op->chunk), layout_->dtype};
    op->ticket = op->fetch ? group->StartAllGather(view) : group->StartReduceScatter(view);
  }
  return true;
}

void TransferPipeline::FinishAtServer(Op* op) {
  // An outcome must be taken exactly once, also that of a failure.
  const Result<client::Outcome> outcome = service_->Wait(op->ticket);
  --at_server_;
  if (Latch(outcome.status())) return;
  (op->fetch ? bytes_h2d_ : bytes_d2h_) += outcome.value().bytes;
  op->stage = op->fetch ? Stage::kTurn : Stage::kDone;
}

void TransferPipeline::FinishInGroup(Op* op) {
  if (op->ticket != 0 && Latch(GroupOf(*op)->Wait(op->ticket))) return;
  op->stage = op->fetch ? Stage::kDone : Stage::kQueued;
}

void TransferPipeline::Advance(Op* op) {
  bool moved = true;
  while (moved && status_.ok() && op->stage != Stage::kDone) {
    switch (op->stage) {
      case Stage::kQueued: moved = StartAtServer(op); break;
      case Stage::kTurn: moved = StartInGroup(op); break;
      case Stage::kAtServer:
        moved = service_->Test(op->ticket);
        if (moved) FinishAtServer(op);
        break;
      case Stage::kInGroup:
        moved = op->ticket == 0 || GroupOf(*op)->Test(op->ticket);
        if (moved) FinishInGroup(op);
        break;
      case Stage::kDone: break;
    }
  }
}

Status TransferPipeline::Progress() {
  // Operations depend on earlier ones only, so one pass in order moves everything as far as it can go.
  for (size_t i = 0; i < ops_.size() && status_.ok(); ++i) Advance(&ops_[i]);
  while (!ops_.empty() && ops_.front().stage == Stage::kDone) {
    ops_.pop_front();
    ++first_;
  }
  return status_;
}

TransferPipeline::Op* TransferPipeline::Blocker(Op* op) {
  while (true) {
    if (op->stage == Stage::kTurn) {
      op = &Of(next_turn_);  // a lower number: its own turn would have been taken
    } else if (op->stage == Stage::kQueued && op->fetch && !Done(op->after)) {
      op = &Of(op->after);
    } else if (op->stage == Stage::kQueued) {
      // Out of tickets: the oldest one in flight must come back.
      size_t i = 0;
      while (ops_[i].stage != Stage::kAtServer) ++i;
      return &ops_[i];
    } else {
      return op;
    }
  }
}

Status TransferPipeline::Wait(OpId id) {
  while (true) {
    TP_RETURN_IF_ERROR(Progress());
    if (Done(id)) return {};
    Op* blocker = Blocker(&Of(id));
    if (blocker->stage == Stage::kAtServer) {
      FinishAtServer(blocker);
    } else {
      TP_CHECK(blocker->stage == Stage::kInGroup, "what blocks an operation is at the server or in the group");
      FinishInGroup(blocker);
    }
  }
}

Status TransferPipeline::WaitAll() {
  TP_RETURN_IF_ERROR(Progress());
  while (!ops_.empty()) TP_RETURN_IF_ERROR(Wait(ops_.back().id));
  return {};
}

}  // namespace tidepool::trainer
