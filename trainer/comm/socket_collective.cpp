#include "trainer/comm/socket_collective.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

constexpr int kAskMs = 250;  // interval of asking whether an operation can still succeed

}  // namespace

SocketCollective::SocketCollective(SocketGroup group)
    : rank_(group.rank),
      world_(static_cast<uint32_t>(group.members.size())),
      doomed_(std::move(group.doomed)),
      thread_(std::move(group.name), group.rank, std::move(group.members), group.timeout_ms,
              group.clock) {}

SocketExchange SocketCollective::NewExchange(OperationKind kind, const OperationName& name) const {
  return {
      .tag = TagOf(kind, name), .out = std::vector<Leg>(world_), .in = std::vector<Leg>(world_)};
}

Collective::Ticket SocketCollective::StartOperation(SocketExchange exchange) {
  const Ticket ticket = thread_.Start(std::move(exchange));
  in_flight_.insert(ticket);
  return ticket;
}

Collective::Ticket SocketCollective::StartAllGather(const BlockView& block) {
  SocketExchange exchange = NewExchange(OperationKind::kAllGather, block.name);
  auto* const data = static_cast<std::byte*>(block.data);
  const uint64_t bytes = block.shard_bytes();
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (rank == rank_) continue;
    exchange.out[rank] = {data + rank_ * bytes, bytes, true};
    exchange.in[rank] = {data + rank * bytes, bytes, true};
  }
  return StartOperation(std::move(exchange));
}

Collective::Ticket SocketCollective::StartReduceScatter(const BlockView& block) {
  SocketExchange exchange = NewExchange(OperationKind::kReduceScatter, block.name);
  auto* const data = static_cast<std::byte*>(block.data);
  const uint64_t bytes = block.shard_bytes();
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (rank == rank_) continue;
    exchange.out[rank] = exchange.in[rank] = {data + rank * bytes, bytes, true};
  }
  exchange.summed = block;
  return StartOperation(std::move(exchange));
}

Collective::Ticket SocketCollective::StartAllToAll(const PartsView& parts) {
  SocketExchange exchange = NewExchange(OperationKind::kAllToAll, parts.name);
  // An exchange only reads its outgoing legs.
  auto* out = const_cast<std::byte*>(static_cast<const std::byte*>(parts.out));
  auto* in = static_cast<std::byte*>(parts.in);

  for (uint32_t rank = 0; rank < world_; ++rank) {
    const uint64_t out_bytes = parts.out_elements[rank] * BytesOf(parts.dtype),
                   in_bytes = parts.in_elements[rank] * BytesOf(parts.dtype);
    if (rank == rank_) {
      TP_CHECK(out_bytes == in_bytes, "what this rank gives itself, it takes");
      if (in_bytes > 0) std::memcpy(in, out, in_bytes);
    } else {
      exchange.out[rank] = {out, out_bytes, true};
      exchange.in[rank] = {in, in_bytes, true};
    }

    out += out_bytes;
    in += in_bytes;
  }
  return StartOperation(std::move(exchange));
}

bool SocketCollective::Test(Ticket ticket) {
  TP_CHECK(ticket >= 1, "a ticket that this group gave out");
  return thread_.Ended(ticket);
}

Status SocketCollective::Wait(Ticket ticket) {
  TP_CHECK(in_flight_.erase(ticket) == 1, "each ticket is waited for once");
  while (!thread_.Ended(ticket)) {
    if (thread_.AwaitChange(kAskMs) || !doomed_) continue;
    if (const Status why = doomed_(); !why.ok()) thread_.GiveUp(why);
  }
  return thread_.ResultOf(ticket);
}

Status SocketCollective::Barrier() {
  SocketExchange exchange = NewExchange(OperationKind::kBarrier);
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (rank != rank_) exchange.out[rank].used = exchange.in[rank].used = true;
  }
  return Wait(StartOperation(std::move(exchange)));
}

Status SocketCollective::SumDoubles(double* values, uint64_t count) {
  std::vector<double> all(world_ * count);
  std::copy_n(values, count, all.data() + rank_ * count);
  // One double is moved as two fp32 elements: the bytes do not change.
  TP_RETURN_IF_ERROR(Wait(
      StartAllGather({.data = all.data(), .shard_elements = 2 * count, .dtype = DType::kF32})));
  for (uint64_t i = 0; i < count; ++i) {
    double sum = all[i];
    for (uint32_t rank = 1; rank < world_; ++rank) sum += all[rank * count + i];
    values[i] = sum;
  }
  return {};
}

Status SocketCollective::Broadcast(void* bytes, uint64_t size) {
  if (size == 0) return {};
  SocketExchange exchange = NewExchange(OperationKind::kBroadcast);
  const Leg leg{static_cast<std::byte*>(bytes), size, true};
  for (uint32_t rank = 1; rank < world_; ++rank) {
    if (rank_ == 0) exchange.out[rank] = leg;
  }
  if (rank_ != 0) exchange.in[0] = leg;
  return Wait(StartOperation(std::move(exchange)));
}

}  // namespace tidepool::trainer
