#include "trainer/comm/rank_link.h"

#include <utility>

namespace tidepool::trainer {
namespace {

constexpr int kAskLinkMs = 250;  // interval of asking whether the message can still succeed

}  // namespace

RankLink::RankLink(SocketGroup group, uint32_t peer, bool sends)
    : peer_(peer),
      members_(static_cast<uint32_t>(group.members.size())),
      sends_(sends),
      doomed_(std::move(group.doomed)),
      thread_(std::move(group.name), group.rank, std::move(group.members), group.timeout_ms,
              group.clock) {}

uint64_t RankLink::Start(const std::string& name, void* bytes, uint64_t count) {
  SocketExchange exchange{.tag = TagOf(OperationKind::kBroadcast, {.of = name}),
                          .out = std::vector<Leg>(members_),
                          .in = std::vector<Leg>(members_)};
  Leg& leg = (sends_ ? exchange.out : exchange.in)[peer_];
  leg = {static_cast<std::byte*>(bytes), count, true};
  return thread_.Start(std::move(exchange));
}

Status RankLink::Wait(uint64_t number) {
  while (!thread_.Ended(number)) {
    if (thread_.AwaitChange(kAskLinkMs) || !doomed_) continue;
    if (const Status why = doomed_(); !why.ok()) thread_.GiveUp(why);
  }
  return thread_.ResultOf(number);
}

}  // namespace tidepool::trainer
