#include "trainer/cache/transfer_pipeline.h"

#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/units.h"

namespace tidepool::trainer {

TransferPipeline::TransferPipeline(PipelineSetup setup)
    : setup_(std::move(setup)),
      names_(setup_.layout),
      service_(setup_.service),
      compute_(setup_.streams.compute),
      traffic_(setup_.layout->data_groups.size()) {}

OpId TransferPipeline::Add(Op op) {
  op.id = first_ + ops_.size();
  op.name = names_.Next(op.chunk);
  ops_.push_back(op);
  if (status_.ok()) Advance(&ops_.back());
  return op.id;
}

OpId TransferPipeline::Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted,
                             const BlockPast& past) {
  return Add({0, chunk, true, 0, wanted, block, past.op, past.use, Stage::kQueued, 0});
}

OpId TransferPipeline::Submit(ChunkId chunk, std::byte* block, Version version,
                              uint32_t micro_batch) {
  // The gate: the gradients are in the compute stream up to here.
  return Add({0, chunk, false, micro_batch, version, block, 0, Mark(), Stage::kTurn, 0});
}

OpId TransferPipeline::SubmitZeros(ChunkId chunk, std::byte* block, Version version,
                                   uint32_t micro_batch) {
  Op op{0, chunk, false, micro_batch, version, block, 0, Mark(), Stage::kTurn, 0};
  op.zeros = true;
  return Add(op);
}

bool TransferPipeline::GatePassed(const Op& op) {
  if (op.gate == 0) return true;
  compute_->Progress(kMiB);
  if (compute_->Passed(op.gate)) return true;
  Latch(compute_->status());
  return false;
}

bool TransferPipeline::Latch(Status status) {
  if (status.ok()) return false;
  if (status_.ok()) status_ = std::move(status);
  return true;
}

Result<client::Ticket> TransferPipeline::Request(const Op& op) const {
  if (op.fetch) return service_->StartFetch(setup_.FetchRange(op.chunk, op.block), op.wanted);
  const client::Range range = setup_.SubmitRange(op.chunk, op.block);
  return op.zeros && service_->attachment().takes_zeros
             ? service_->StartSubmitZeros(range, op.wanted.version, op.micro_batch)
             : service_->StartSubmitGradient(range, op.wanted.version, op.micro_batch);
}

bool TransferPipeline::StartAtServer(Op* op) {
  if (op->fetch && (!Done(op->after) || !GatePassed(*op))) return false;
  if (at_server_ >= kTicketsUsed) return false;
  Result<client::Ticket> ticket = Request(*op);
  if (Latch(ticket.status())) return false;

  op->ticket = ticket.value();
  const client::TicketFlags flags = service_->FlagsOf(op->ticket);
  if (flags.ready != nullptr) flags.ready->store(flags.value, std::memory_order_release);
  op->stage = Stage::kAtServer;
  ++at_server_;
  return true;
}

bool TransferPipeline::StartInGroup(Op* op) {
  if (op->id != next_turn_) return false;
  if (!op->fetch && !GatePassed(*op)) return false;
  op->stage = Stage::kInGroup;
  op->ticket = 0;
  // The turn of an all-reduce ends when its second half has started, so that the halves of two
  // all-reduces have the same order on all ranks.
  op->gathers_next = !op->fetch && !op->zeros && setup_.AllReduces(op->chunk);
  if (!op->gathers_next) ++next_turn_;
  // Zeros, and a group of one rank, have nothing to exchange, but keep their turn.
  if (op->zeros) return true;
  if (op->fetch ? !setup_.Gathers(op->chunk) : !setup_.Reduces(op->chunk)) return true;

  Collective* group = setup_.GroupOf(op->chunk);
  const BlockView view =
      op->fetch ? setup_.View(op->block, op->name) : setup_.SubmitView(op->block, op->name);
  const uint64_t sent = (group->world() - 1) * view.shard_bytes();
  op->ticket = op->fetch ? group->StartAllGather(view) : group->StartReduceScatter(view);
  (op->fetch          ? CountOf(*op).gathered
   : op->gathers_next ? CountOf(*op).reduced
                      : CountOf(*op).scattered) += sent;
  return true;
}

void TransferPipeline::StartGatherOfSums(Op* op) {
  Collective* group = setup_.GroupOf(op->chunk);
  const BlockView view = setup_.View(op->block, op->name);
  op->ticket = group->StartAllGather(view);
  op->gathers_next = false;
  ++next_turn_;
  CountOf(*op).reduced += (group->world() - 1) * view.shard_bytes();
}

void TransferPipeline::FinishAtServer(Op* op) {
  // An outcome must be taken exactly once, also that of a failure.
  const Result<client::Outcome> outcome = service_->Wait(op->ticket);
  --at_server_;
  if (Latch(outcome.status())) return;
  (op->fetch ? CountOf(*op).fetched : CountOf(*op).handed_in) += outcome.value().bytes;
  op->stage = op->fetch ? Stage::kTurn : Stage::kDone;
}

void TransferPipeline::FinishInGroup(Op* op) {
  if (op->ticket != 0 && Latch(setup_.GroupOf(op->chunk)->Wait(op->ticket))) return;
  if (op->gathers_next) return StartGatherOfSums(op);
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
        moved = op->ticket == 0 || setup_.GroupOf(op->chunk)->Test(op->ticket);
        if (moved) FinishInGroup(op);
        break;
      case Stage::kDone: break;
    }
  }
}

Status TransferPipeline::Progress() {
  // Operations depend on earlier ones only, so one pass in order advances everything as far as
  // possible.
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
      // A lower number, or its own turn would have been taken.
      op = &Of(next_turn_);
      if (op->stage == Stage::kTurn) return op;  // its turn has come, the gradients have not
    } else if (op->stage == Stage::kQueued && op->fetch && !Done(op->after)) {
      op = &Of(op->after);
    } else if (op->stage == Stage::kQueued && op->fetch && !GatePassed(*op)) {
      return op;
    } else if (op->stage == Stage::kQueued) {
      // Its condition was met after Progress looked: operators end at any time.
      if (at_server_ < kTicketsUsed && !TP_PLANTED("cache.one_look_trusted")) return nullptr;
      // Out of tickets: the oldest in flight must return.
      size_t i = 0;
      while (ops_[i].stage != Stage::kAtServer) ++i;
      return &ops_[i];
    } else {
      return op;
    }
  }
}

void TransferPipeline::Unblock(Op* blocker) {
  switch (blocker->stage) {
    case Stage::kAtServer: return FinishAtServer(blocker);
    case Stage::kInGroup: return FinishInGroup(blocker);
    case Stage::kQueued:
    case Stage::kTurn:
      compute_->Synchronize(blocker->gate);
      Latch(compute_->status());
      return;
    case Stage::kDone: break;
  }

  TP_CHECK(false, "what has ended blocks nobody");
}

Status TransferPipeline::WaitFor(OpId id) {
  while (true) {
    TP_RETURN_IF_ERROR(Progress());
    if (Done(id)) return {};
    if (Op* const blocker = Blocker(&Of(id))) Unblock(blocker);
  }
}

Status TransferPipeline::Wait(OpId id, bool prefetched) {
  if (Done(id)) return status_;
  TP_RETURN_IF_ERROR(Progress());  // it may have arrived since the last check
  if (Done(id)) return {};
  late_ += prefetched;
  const int64_t before = setup_.clock->NowNs();
  const Status waited = WaitFor(id);
  wait_ns_ += static_cast<uint64_t>(setup_.clock->NowNs() - before);
  return waited;
}

Status TransferPipeline::AwaitOperators() {
  if (compute_ == nullptr || !status_.ok()) return status_;
  compute_->Synchronize(compute_->Record());
  Latch(compute_->status());
  return status_;
}

Status TransferPipeline::WaitAll() {
  const int64_t before = setup_.clock->NowNs();
  Status waited = Progress();
  // Waits for the oldest each time: while waiting for the last one, earlier ones could be in flight
  // and would be polled repeatedly.
  while (waited.ok() && !ops_.empty())
    waited = WaitFor(TP_PLANTED("cache.last_one_awaited") ? first_ + ops_.size() - 1 : first_);
  wait_ns_ += static_cast<uint64_t>(setup_.clock->NowNs() - before);
  return waited;
}

Status TransferPipeline::FinishPass() {
  TP_RETURN_IF_ERROR(WaitAll());
  Latch(setup_.CompareOrders());
  return status_;
}

}  // namespace tidepool::trainer
