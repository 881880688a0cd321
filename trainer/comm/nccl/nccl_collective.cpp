#include "trainer/comm/nccl/nccl_collective.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "trainer/comm/meeting/first_line.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kPollNs = 20'000;
// Number of polls before the first sleep: NCCL launches an operation within microseconds.
constexpr int kSpins = 200;
constexpr int64_t kAskNs = kNsPerSecond / 4;
constexpr int64_t kFarewellNs = 5 * kNsPerSecond;

int TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return NcclTable::kFloat32;
    case DType::kBF16: return NcclTable::kBfloat16;
    case DType::kF16: return NcclTable::kFloat16;
    case DType::kRaw: return NcclTable::kUint8;
  }
  return NcclTable::kFloat32;
}

std::byte* ShardOf(const BlockView& block, uint32_t rank) {
  return static_cast<std::byte*>(block.data) + rank * block.shard_elements * BytesOf(block.dtype);
}

// Rank 0's message to the others.
struct Invitation {
  NcclId id;
  int result = NcclTable::kSuccess;  // of making the id
};

}  // namespace

std::string NcclCollective::Doing(const char* name) const {
  return std::string(name) + " in group '" + setup_.name + "' failed on its rank " +
         std::to_string(rank()) + " of " + std::to_string(world());
}

Result<std::unique_ptr<NcclCollective>> NcclCollective::Open(NcclSetup setup) {
  TP_CHECK(setup.nccl != nullptr && setup.host != nullptr && setup.stream != nullptr &&
               setup.clock != nullptr && setup.together != nullptr,
           "a whole setup");
  std::unique_ptr<NcclCollective> group(new NcclCollective(std::move(setup)));
  TP_RETURN_IF_ERROR(group->Connect());
  return group;
}

Status NcclCollective::Connect() {
  Invitation invitation;
  if (rank() == 0) invitation.result = setup_.nccl->get_unique_id(&invitation.id);
  TP_RETURN_IF_ERROR(setup_.host->Broadcast(&invitation, sizeof invitation));
  Settle("ncclGetUniqueId of its rank 0", invitation.result);
  if (!failure_.ok()) return failure_;
  // NCCL uses the thread's current GPU: any call of the stream sets it.
  setup_.stream->Record();
  const int result =
      setup_.nccl->comm_init_rank_config(&comm_, static_cast<int>(world()), invitation.id,
                                         static_cast<int>(rank()), NonBlockingConfig());
  setup_.together->Add(comm_);
  Settle("ncclCommInitRankConfig", result);
  return failure_;
}

NcclCollective::~NcclCollective() {
  if (!setup_.together->Has(comm_)) return;
  if (!EndsInOrder()) setup_.together->AbortAll();
}

bool NcclCollective::EndsInOrder() {
  if (!failure_.ok()) return false;

  // Peers may still read what this rank sends, so the ranks end the communicator together.
  int result = setup_.nccl->comm_finalize(comm_);
  const int64_t until = setup_.clock->NowNs() + kFarewellNs;
  while (result == NcclTable::kInProgress && setup_.clock->NowNs() < until) {
    setup_.clock->SleepNs(kPollNs);
    if (setup_.nccl->comm_get_async_error(comm_, &result) != NcclTable::kSuccess) break;
  }
  if (result != NcclTable::kSuccess) return false;

  setup_.together->Remove(comm_);
  static_cast<void>(setup_.nccl->comm_destroy(comm_));
  return true;
}

void NcclCollective::FailWith(const Status& why) {
  if (failure_.ok())
    failure_ = Status(ErrorId::kCollectiveFailed, Doing("an operation")).Why(why.what());
}

void NcclCollective::GiveUp(const Status& why) {
  FailWith(why);
  setup_.together->AbortAll();
}

void NcclCollective::Fail(const char* name, int result) {
  std::string why = setup_.nccl->get_error_string(result);
  const char* detail = comm_ == nullptr ? nullptr : setup_.nccl->get_last_error(comm_);
  if (detail != nullptr && *detail != '\0') why += ": " + FirstLine(detail);
  failure_ = Status(ErrorId::kCollectiveFailed, Doing(name)).Why(why);
}

void NcclCollective::AskDoomed() {
  const int64_t now = setup_.clock->NowNs();
  if (!setup_.doomed || now - asked_ns_ < kAskNs) return;
  asked_ns_ = now;
  const Status why = setup_.doomed();
  if (!why.ok()) FailWith(why);
}

void NcclCollective::Settle(const char* name, int result) {
  const int64_t until = setup_.clock->NowNs() + setup_.timeout_ms * kNsPerMs;
  for (int looks = 0; result == NcclTable::kInProgress; ++looks) {
    AskDoomed();
    if (!failure_.ok()) return;
    if (setup_.clock->NowNs() >= until) {
      return FailWith(Status(
          ErrorId::kCollectiveFailed,
          std::string(name) + " did not end within " + std::to_string(setup_.timeout_ms) + " ms"));
    }

    if (looks >= kSpins) setup_.clock->SleepNs(kPollNs);
    const int asked = setup_.nccl->comm_get_async_error(comm_, &result);
    if (asked != NcclTable::kSuccess) result = asked;
  }
  if (result != NcclTable::kSuccess) Fail(name, result);
}

bool NcclCollective::Usable() {
  if (failure_.ok() && !setup_.together->Has(comm_))
    FailWith(Status(ErrorId::kCollectiveFailed, "another group of this rank has failed"));
  return failure_.ok();
}

void NcclCollective::Look() {
  if (!Usable()) return;
  int error = NcclTable::kSuccess;
  const int asked = setup_.nccl->comm_get_async_error(comm_, &error);
  if (asked != NcclTable::kSuccess) error = asked;
  if (error != NcclTable::kSuccess && error != NcclTable::kInProgress)
    return Fail("an operation", error);
  AskDoomed();
}

Collective::Ticket NcclCollective::Keep(const char* name, int result) {
  Settle(name, result);
  in_flight_.emplace(++last_, setup_.stream->Record());
  return last_;
}

Collective::Ticket NcclCollective::StartAllGather(const BlockView& block) {
  constexpr const char* kName = "ncclAllGather";
  order_.Add(TagOf(OperationKind::kAllGather, block.name), block.shard_bytes());
  if (!Usable()) return Keep(kName, NcclTable::kSuccess);
  return Keep(kName,
              setup_.nccl->all_gather(ShardOf(block, rank()), block.data, block.shard_elements,
                                      TypeOf(block.dtype), comm_, setup_.native_stream));
}

Collective::Ticket NcclCollective::StartReduceScatter(const BlockView& block) {
  constexpr const char* kName = "ncclReduceScatter";
  order_.Add(TagOf(OperationKind::kReduceScatter, block.name), block.shard_bytes());
  if (!Usable()) return Keep(kName, NcclTable::kSuccess);
  return Keep(kName, setup_.nccl->reduce_scatter(block.data, ShardOf(block, rank()),
                                                 block.shard_elements, TypeOf(block.dtype),
                                                 NcclTable::kSum, comm_, setup_.native_stream));
}

int NcclCollective::ExchangeParts(const PartsView& parts) {
  const auto* out = static_cast<const std::byte*>(parts.out);
  auto* in = static_cast<std::byte*>(parts.in);
  int first = setup_.nccl->group_start();
  const auto note = [&first](int result) {
    if (first == NcclTable::kSuccess && result != NcclTable::kInProgress) first = result;
  };

  for (uint32_t peer = 0; peer < world() && first == NcclTable::kSuccess; ++peer) {
    const uint64_t out_count = parts.out_elements[peer], in_count = parts.in_elements[peer];
    const int rank = static_cast<int>(peer), type = TypeOf(parts.dtype);
    // Sender and receiver both know of an empty part, so neither calls NCCL for it.
    if (out_count > 0)
      note(setup_.nccl->send(out, out_count, type, rank, comm_, setup_.native_stream));
    if (in_count > 0)
      note(setup_.nccl->receive(in, in_count, type, rank, comm_, setup_.native_stream));
    out += out_count * BytesOf(parts.dtype);
    in += in_count * BytesOf(parts.dtype);
  }

  const int ended = setup_.nccl->group_end();
  return first == NcclTable::kSuccess ? ended : first;
}

Collective::Ticket NcclCollective::StartAllToAll(const PartsView& parts) {
  constexpr const char* kName = "ncclSend and ncclRecv";
  order_.Add(TagOf(OperationKind::kAllToAll, parts.name), 0);
  return Keep(kName, Usable() ? ExchangeParts(parts) : NcclTable::kSuccess);
}

Status NcclCollective::CompareOrder() {
  if (!Usable()) return failure_;
  const Status alike = order_.Compare(setup_.host.get());
  if (!alike.ok()) FailWith(alike);
  return failure_;
}

bool NcclCollective::Test(Ticket ticket) {
  const auto found = in_flight_.find(ticket);
  TP_CHECK(found != in_flight_.end(),
           "a ticket that this group gave out and that was not waited for");
  Look();
  return !failure_.ok() || setup_.stream->Passed(found->second);
}

Status NcclCollective::Wait(Ticket ticket) {
  TP_CHECK(in_flight_.erase(ticket) == 1, "each ticket is waited for once");
  Look();
  return failure_;
}

}  // namespace tidepool::trainer
