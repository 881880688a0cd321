#include "trainer/cache/ahead_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kWordBytes = 64;  // words of different writers share no cache line
constexpr int64_t kPollNs = 20'000;
constexpr uint64_t kInlineBytes = kMiB;  // at one look, where a stream works on this thread
constexpr int kLeavePolls = 100'000;     // two seconds

}  // namespace

bool AheadPipeline::Word::Reached() const {
  if (flag == nullptr) return true;
  const uint64_t now = flag->load(std::memory_order_acquire);
  return now == device::kFlagPoison || static_cast<int64_t>(now - value) >= 0;
}

Result<std::unique_ptr<AheadPipeline>> AheadPipeline::Open(PipelineSetup setup) {
  TP_CHECK(setup.streams.device != nullptr && setup.streams.compute != nullptr && setup.streams.recycle != nullptr,
           "an rCache on a device comes with its streams");
  TP_CHECK(setup.service->attachment().flags != nullptr, "memory of a device comes with flags");
  TP_ASSIGN_OR_RETURN(RegisteredHost words, RegisteredHost::Create(setup.streams.device, (1 + setup.groups.size()) * kWordBytes));
  std::unique_ptr<AheadPipeline> pipeline(new AheadPipeline(std::move(setup), std::move(words)));
  pipeline->gathers_.assign(pipeline->setup_.groups.size(), 0);
  return pipeline;
}

AheadPipeline::~AheadPipeline() {
  PoisonOwnWords();
  const Ends ends = RecordEnds();
  bool passed = LookAt(ends);
  for (int polls = 0; !passed && polls < kLeavePolls; ++polls) {
    SteadyClock().SleepNs(kPollNs);
    passed = LookAt(ends);
  }
  if (!passed) words_.Abandon();
}

std::vector<device::Stream*> AheadPipeline::Streams() const {
  std::vector<device::Stream*> streams{setup_.streams.compute, setup_.streams.recycle};
  for (Collective* group : setup_.groups) {
    device::Stream* stream = group == nullptr ? nullptr : group->stream();
    if (stream != nullptr && std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
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

void AheadPipeline::PoisonOwnWords() const {
  for (size_t i = 0; i <= setup_.groups.size(); ++i) PlaceInWords(i).flag->store(device::kFlagPoison, std::memory_order_release);
}

void AheadPipeline::LetStreamsGo() const {
  PoisonOwnWords();
  for (const Op& op : ops_) setup_.service->FlagsOf(op.ticket).done->store(device::kFlagPoison, std::memory_order_release);
  for (Collective* group : setup_.groups) {
    if (group != nullptr) group->GiveUp(status_);
  }
}

AheadPipeline::Word AheadPipeline::PlaceInWords(size_t index) const {
  return {reinterpret_cast<device::Flag*>(words_.data() + index * kWordBytes), 0};
}

AheadPipeline::Word AheadPipeline::MarkCompute() {
  Word word = PlaceInWords(0);
  word.value = ++marks_;
  setup_.streams.compute->WriteFlag(word.flag, word.value);
  return word;
}

UseMark AheadPipeline::Used() {
  const UseMark mark = MarkCompute().value;
  if (mark > kMarksAhead) HoldBack({PlaceInWords(0).flag, mark - kMarksAhead});
  return mark;
}

void AheadPipeline::HoldBack(const Word& at) {
  if (at.Reached()) return;
  const Ends ends = RecordEnds();
  while (Progress().ok() && !at.Reached()) {
    LookAt(ends);
    SteadyClock().SleepNs(kPollNs);
  }
}

AheadPipeline::Word AheadPipeline::FreeAt(const BlockPast& past) const {
  if (past.use != 0) return {PlaceInWords(0).flag, past.use};
  return past.op < first_ ? Word() : ops_[past.op - first_].end;
}

OpId AheadPipeline::Start(Op op, const Result<client::Ticket>& ticket) {
  const OpId id = first_ + ops_.size();
  if (!Latch(ticket.status()).ok()) return 0;
  op.ticket = ticket.value();
  const client::TicketFlags flags = setup_.service->FlagsOf(op.ticket);
  TP_CHECK(flags.ready != nullptr && flags.done != nullptr, "a ticket of an rCache on a device has flags");
  op.ready = {flags.ready, flags.value};
  op.end = {flags.done, flags.value};
  ops_.push_back(op);
  return id;
}

OpId AheadPipeline::Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past) {
  if (!MakeRoom().ok()) return 0;
  const Word free = FreeAt(past);
  const OpId id = Start({chunk, true, 0, {}, {}}, setup_.service->StartFetch(setup_.ShardRange(chunk, block), wanted));
  if (id == 0) return 0;
  Op& op = ops_.back();
  if (free.Reached()) {
    op.ready.flag->store(op.ready.value, std::memory_order_release);
  } else {
    setup_.streams.recycle->WaitFlag(free.flag, free.value);
    setup_.streams.recycle->WriteFlag(op.ready.flag, op.ready.value);
  }
  if (setup_.layout->ShardCount(chunk) == 1) return id;
  Collective* group = setup_.GroupOf(chunk);
  const uint32_t number = setup_.layout->chunks[chunk].data_group;
  group->stream()->WaitFlag(op.end.flag, op.end.value);
  op.in_group = group->StartAllGather(setup_.View(chunk, block));
  op.end = PlaceInWords(1 + number);
  op.end.value = ++gathers_[number];
  group->stream()->WriteFlag(op.end.flag, op.end.value);
  return id;
}

OpId AheadPipeline::Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch) {
  if (!MakeRoom().ok()) return 0;
  const auto ticket = setup_.service->StartSubmitGradient(setup_.ShardRange(chunk, block), version, micro_batch);
  const OpId id = Start({chunk, false, 0, {}, {}}, ticket);
  if (id == 0) return 0;
  Op& op = ops_.back();
  if (setup_.layout->ShardCount(chunk) == 1) {
    setup_.streams.compute->WriteFlag(op.ready.flag, op.ready.value);
    return id;
  }
  Collective* group = setup_.GroupOf(chunk);
  const Word computed = MarkCompute();
  group->stream()->WaitFlag(computed.flag, computed.value);
  op.in_group = group->StartReduceScatter(setup_.View(chunk, block));
  group->stream()->WriteFlag(op.ready.flag, op.ready.value);
  return id;
}

bool AheadPipeline::Done(OpId id) const {
  return id < first_ || ops_[id - first_].end.Reached();
}

Status AheadPipeline::Wait(OpId id, bool prefetched) {
  if (!status_.ok() || Done(id)) return status_;
  Op& op = ops_[id - first_];
  if (std::exchange(op.awaited, true)) return {};
  if (prefetched) standing_.push_back({MarkCompute(), op.end, false});
  setup_.streams.compute->WaitFlag(op.end.flag, op.end.value);
  LookAtStanding();
  return {};
}

void AheadPipeline::LookAtStanding() {
  // The compute stream comes to its waits in order: it stands at the first one that is not over, or before it.
  while (!standing_.empty() && standing_.front().end.Reached()) standing_.pop_front();
  if (standing_.empty() || standing_.front().late || !standing_.front().at.Reached()) return;
  // Looked at again: the transfer may have ended before the stream came.
  if (standing_.front().end.Reached()) return;
  standing_.front().late = true;
  ++late_;
}

void AheadPipeline::TakeAnswer(Op* op) {
  // An outcome must be taken exactly once, also that of a failure.
  op->answered = true;
  const Result<client::Outcome> outcome = setup_.service->Wait(op->ticket);
  if (!Latch(outcome.status()).ok()) {
    // Where the session goes on without this transfer, nobody else ends what waits for it.
    setup_.service->FlagsOf(op->ticket).done->store(device::kFlagPoison, std::memory_order_release);
    return;
  }
  (op->fetch ? bytes_h2d_ : bytes_d2h_) += outcome.value().bytes;
}

void AheadPipeline::TakeGroupsWord(Op* op) {
  Collective* group = setup_.GroupOf(op->chunk);
  if (op->in_group == 0 || !group->Test(op->in_group)) return;
  static_cast<void>(Latch(group->Wait(std::exchange(op->in_group, 0))));
}

bool AheadPipeline::FinishOldest() {
  Op& op = ops_.front();
  TakeGroupsWord(&op);
  if (!status_.ok()) return false;
  if (!op.answered && setup_.service->Test(op.ticket)) TakeAnswer(&op);
  if (!status_.ok() || !op.answered || op.in_group != 0 || !op.end.Reached()) return false;
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
    passed &= stream->Passed(end);  // this look is also how a stream finds its errors
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
    // The server's part can be slept through; this process's streams, and peers, fail in ways that only a look tells.
    if (!op.answered && op.ready.Reached()) {
      TakeAnswer(&op);
    } else {
      SteadyClock().SleepNs(kPollNs);
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

Status AheadPipeline::AwaitOperators() {
  const int64_t before = setup_.clock->NowNs();
  const Ends end{{setup_.streams.compute, setup_.streams.compute->Record()}};
  const Ends others = RecordEnds();
  while (!LookAt(end) && Progress().ok()) {
    LookAt(others);
    SteadyClock().SleepNs(kPollNs);
  }
  wait_ns_ += static_cast<uint64_t>(setup_.clock->NowNs() - before);
  return status_;
}

}  // namespace tidepool::trainer
