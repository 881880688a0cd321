#include "trainer/cache/ahead_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kPollNs = 20'000;
constexpr uint64_t kInlineBytes = kMiB;  // per check, if a stream runs on this thread
constexpr int kLeavePolls = 100'000;     // two seconds

}  // namespace

bool AheadPipeline::Word::Reached() const {
  if (flag == nullptr) return true;
  const uint64_t now = flag->load(std::memory_order_acquire);
  return now == device::kFlagPoison || static_cast<int64_t>(now - value) >= 0;
}

AheadPipeline::AheadPipeline(PipelineSetup setup)
    : setup_(std::move(setup)), names_(setup_.layout), traffic_(setup_.layout->data_groups.size()) {
  TP_CHECK(setup_.streams.device != nullptr && setup_.streams.compute != nullptr &&
               setup_.streams.recycle != nullptr,
           "an rCache on a device comes with its streams");
  TP_CHECK(setup_.service->attachment().flags != nullptr, "memory of a device comes with flags");
}

AheadPipeline::~AheadPipeline() {
  const Ends ends = RecordEnds();
  bool passed = LookAt(ends);
  for (int polls = 0; !passed && polls < kLeavePolls; ++polls) {
    setup_.clock->SleepNs(kPollNs);
    passed = LookAt(ends);
  }
}

std::vector<device::Stream*> AheadPipeline::Streams() const {
  std::vector<device::Stream*> streams{setup_.streams.compute, setup_.streams.recycle};
  for (Collective* group : setup_.groups) {
    device::Stream* stream = group == nullptr ? nullptr : group->stream();
    if (stream != nullptr && std::find(streams.begin(), streams.end(), stream) == streams.end())
      streams.push_back(stream);
  }
  return streams;
}

Status AheadPipeline::Latch(Status status) {
  if (!status.ok() && status_.ok()) {
    status_ = std::move(status);
    LetStreamsGo();
  }
  return status_;
}

void AheadPipeline::LetStreamsGo() const {
  for (const Op& op : ops_)
    setup_.service->FlagsOf(op.ticket).done->store(device::kFlagPoison, std::memory_order_release);
  for (Collective* group : setup_.groups) {
    if (group != nullptr) group->GiveUp(status_);
  }
}

bool AheadPipeline::Used() {
  ++operators_;
  return operators_ - (marks_.empty() ? 0 : marks_.back().operators) >= kOperatorsAMark;
}

UseMark AheadPipeline::Mark() {
  const UseMark mark = setup_.streams.compute->Record();
  marks_.push_back({operators_, mark});
  while (marks_.front().operators + kOperatorsAhead <= operators_) {
    HoldBack(marks_.front().at);
    marks_.pop_front();
  }
  return mark;
}

void AheadPipeline::HoldBack(UseMark at) {
  if (setup_.streams.compute->Passed(at)) return;
  const Ends ends = RecordEnds();
  while (Progress().ok() && !setup_.streams.compute->Passed(at)) {
    LookAt(ends);
    setup_.clock->SleepNs(kPollNs);
  }
}

bool AheadPipeline::IsFree(const BlockPast& past) const {
  return past.use != 0 ? setup_.streams.compute->Passed(past.use) : Done(past.op);
}

void AheadPipeline::WaitUntilFree(const BlockPast& past) {
  device::Stream* const recycle = setup_.streams.recycle;
  past.use != 0 ? recycle->WaitMarker(setup_.streams.compute, past.use)
                : PutWait(recycle, ops_[past.op - first_]);
}

void AheadPipeline::PutWait(device::Stream* stream, const Op& op) {
  if (op.gathered.stream != nullptr)
    return stream->WaitMarker(op.gathered.stream, op.gathered.marker);
  if (op.told.stream != nullptr && !TP_PLANTED("cache.server_wait_unordered"))
    stream->WaitMarker(op.told.stream, op.told.marker);
  stream->WaitFlag(op.done.flag, op.done.value);
}

OpId AheadPipeline::Start(Op op, const Result<client::Ticket>& ticket) {
  const OpId id = first_ + ops_.size();
  if (!Latch(ticket.status()).ok()) return 0;
  op.ticket = ticket.value();
  const client::TicketFlags flags = setup_.service->FlagsOf(op.ticket);
  TP_CHECK(flags.ready != nullptr && flags.done != nullptr,
           "a ticket of an rCache on a device has flags");
  op.ready = {flags.ready, flags.value};
  op.done = {flags.done, flags.value};
  ops_.push_back(op);
  return id;
}

OpId AheadPipeline::Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted,
                          const BlockPast& past) {
  if (!MakeRoom().ok()) return 0;
  const bool free = IsFree(past);
  const OpId id =
      Start({chunk, true, 0}, setup_.service->StartFetch(setup_.FetchRange(chunk, block), wanted));
  if (id == 0) return 0;

  Op& op = ops_.back();
  if (free) {
    op.ready.flag->store(op.ready.value, std::memory_order_release);
  } else {
    WaitUntilFree(past);
    setup_.streams.recycle->WriteFlag(op.ready.flag, op.ready.value);
    op.told = PointIn(setup_.streams.recycle);
  }

  if (!setup_.Gathers(chunk)) return id;
  Collective* group = setup_.GroupOf(chunk);
  const BlockView view = setup_.View(block, names_.Next(chunk));
  PutWait(group->stream(), op);
  op.in_group = group->StartAllGather(view);
  CountOf(chunk).gathered += (group->world() - 1) * view.shard_bytes();
  op.gathered = PointIn(group->stream());
  return id;
}

OpId AheadPipeline::SubmitAlone(ChunkId chunk, std::byte* block, Version version,
                                uint32_t micro_batch) {
  if (!MakeRoom().ok()) return 0;
  const auto ticket =
      setup_.service->StartSubmitGradient(setup_.ShardRange(chunk, block), version, micro_batch);
  const OpId id = Start({chunk, false, 0}, ticket);
  if (id == 0) return 0;

  Op& op = ops_.back();
  setup_.streams.compute->WriteFlag(op.ready.flag, op.ready.value);
  op.told = PointIn(setup_.streams.compute);
  return id;
}

OpId AheadPipeline::Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch) {
  if (!setup_.Reduces(chunk)) return SubmitAlone(chunk, block, version, micro_batch);
  if (!MakeRoom().ok()) return 0;
  const auto ticket =
      setup_.service->StartSubmitGradient(setup_.ShardRange(chunk, block), version, micro_batch);
  const OpId id = Start({chunk, false, 0}, ticket);
  if (id == 0) return 0;

  Op& op = ops_.back();
  Collective* group = setup_.GroupOf(chunk);
  const BlockView view = setup_.View(block, names_.Next(chunk));
  const uint64_t sent = (group->world() - 1) * view.shard_bytes();

  group->stream()->WaitMarker(setup_.streams.compute, setup_.streams.compute->Record());
  op.in_group = group->StartReduceScatter(view);
  if (setup_.AllReduces(chunk)) {
    op.sums_in_group = group->StartAllGather(view);  // after the sums, in the group's stream
    CountOf(chunk).reduced += 2 * sent;
  } else {
    CountOf(chunk).scattered += sent;
  }
  group->stream()->WriteFlag(op.ready.flag, op.ready.value);
  op.told = PointIn(group->stream());
  return id;
}

bool AheadPipeline::Done(OpId id) const {
  return id < first_ || ops_[id - first_].Ended();
}

Status AheadPipeline::Wait(OpId id, bool prefetched) {
  if (!status_.ok() || Done(id)) return status_;
  Op& op = ops_[id - first_];
  if (std::exchange(op.awaited, true)) return {};
  if (prefetched) standing_.push_back({setup_.streams.compute->Record(), id, false});
  PutWait(setup_.streams.compute, op);
  LookAtStanding();
  return {};
}

void AheadPipeline::LookAtStanding() {
  // The compute stream reaches its waits in order: it is at, or before, the first unfinished one.
  while (!standing_.empty() && Done(standing_.front().op)) standing_.pop_front();
  if (standing_.empty() || standing_.front().late ||
      !setup_.streams.compute->Passed(standing_.front().at))
    return;
  // Checked again, because the transfer may have ended before the stream reached the wait.
  if (Done(standing_.front().op)) return;
  standing_.front().late = true;
  ++late_;
}

void AheadPipeline::TakeAnswer(Op* op) {
  // An outcome must be taken exactly once, also that of a failure.
  op->answered = true;
  const Result<client::Outcome> outcome = setup_.service->Wait(op->ticket);
  if (!Latch(outcome.status()).ok()) {
    // The session may continue without this transfer; then nobody else ends the streams' waits for
    // it.
    setup_.service->FlagsOf(op->ticket).done->store(device::kFlagPoison, std::memory_order_release);
    return;
  }
  (op->fetch ? CountOf(op->chunk).fetched : CountOf(op->chunk).handed_in) += outcome.value().bytes;
}

void AheadPipeline::TakeGroupsWord(Op* op) {
  Collective* group = setup_.GroupOf(op->chunk);
  TakeWord(group, &op->in_group);
  if (op->in_group == 0) TakeWord(group, &op->sums_in_group);
}

void AheadPipeline::TakeWord(Collective* group, Collective::Ticket* ticket) {
  if (*ticket == 0 || !status_.ok() || !group->Test(*ticket)) return;
  static_cast<void>(Latch(group->Wait(std::exchange(*ticket, 0))));
}

bool AheadPipeline::FinishOldest() {
  Op& op = ops_.front();
  TakeGroupsWord(&op);
  if (!status_.ok()) return false;
  if (!op.answered && setup_.service->Test(op.ticket)) TakeAnswer(&op);
  if (!status_.ok() || !op.answered || op.in_group != 0 || op.sums_in_group != 0 || !op.Ended())
    return false;
  ops_.pop_front();
  ++first_;
  return true;
}

Status AheadPipeline::Progress() {
  LookAtStanding();
  while (status_.ok() && !ops_.empty() && FinishOldest()) {
  }
  return status_;
}

AheadPipeline::Ends AheadPipeline::RecordEnds() const {
  Ends ends;
  for (device::Stream* stream : Streams()) ends.emplace_back(stream, stream->Record());
  return ends;
}

bool AheadPipeline::LookAt(const Ends& ends) {
  bool passed = true;
  for (const auto& [stream, end] : ends) {
    stream->Progress(kInlineBytes);
    passed &= stream->Passed(end);  // this check also detects a stream's errors
    static_cast<void>(Latch(stream->status()));
  }
  return passed;
}

Status AheadPipeline::AwaitOldest() {
  if (!status_.ok() || FinishOldest()) return status_;
  const int64_t before = setup_.clock->NowNs();
  const Ends ends = RecordEnds();
  while (status_.ok() && !FinishOldest()) {
    LookAt(ends);
    if (!status_.ok()) break;
    LookAtStanding();
    Op& op = ops_.front();
    // The server's part may be slept through, because the server wakes this thread. Streams and
    // peers may fail silently: they must be polled.
    if (!op.answered && op.ready.Reached()) {
      TakeAnswer(&op);
    } else {
      setup_.clock->SleepNs(kPollNs);
    }
  }
  wait_ns_ += static_cast<uint64_t>(setup_.clock->NowNs() - before);
  return status_;
}

Status AheadPipeline::MakeRoom() {
  while (status_.ok() && ops_.size() >= kTicketsUsed) TP_RETURN_IF_ERROR(AwaitOldest());
  return status_;
}

Status AheadPipeline::WaitAll() {
  TP_RETURN_IF_ERROR(Progress());
  while (!ops_.empty()) TP_RETURN_IF_ERROR(AwaitOldest());
  return {};
}

Status AheadPipeline::FinishPass() {
  if (status_.ok()) TP_RETURN_IF_ERROR(Latch(setup_.CompareOrders()));
  return WaitAll();
}

Status AheadPipeline::AwaitOperators() {
  const int64_t before = setup_.clock->NowNs();
  const Ends end{{setup_.streams.compute, setup_.streams.compute->Record()}};
  const Ends others = RecordEnds();
  while (!LookAt(end) && Progress().ok()) {
    LookAt(others);
    setup_.clock->SleepNs(kPollNs);
  }
  wait_ns_ += static_cast<uint64_t>(setup_.clock->NowNs() - before);
  return status_;
}

}  // namespace tidepool::trainer
