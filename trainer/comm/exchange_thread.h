// ExchangeThread: moves bytes between the ranks of one group over their sockets, in the background,
// exchange by exchange.
//
// The constructing thread calls all methods; the internal thread owns the sockets and the exchanges
// in progress, never blocks in a socket call, and touches no memory of an exchange that has ended.
// Exchanges end in the order in which they were started.
// A group fails once, for good: when a rank leaves that the oldest exchange still needs, when a
// rank reports a different exchange, when no byte moves for the time-out while an exchange is in
// progress, or when it is given up. Its sockets then close, so that the other ranks notice. A rank
// that leaves after its last exchange disturbs nobody.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/comm/collective.h"

namespace tidepool::trainer {

struct Leg {  // bytes sent to, or received from, one rank in one exchange
  std::byte* bytes = nullptr;
  uint64_t count = 0;
  bool used = false;  // an empty leg in use still tells the peer that this rank got so far
};

// One exchange: the bytes sent to, and received from, each other rank.
struct SocketExchange {
  OperationTag tag{};          // compared between ranks, as the length of each leg is
  std::vector<Leg> out, in{};  // by rank of the group; this rank's own are unused
  // If `data` is not null: a block whose shards are both legs. Received bytes overwrite sent ones,
  // always behind the send position, and need no memory of their own; at the end this rank's shard
  // becomes the sum of all shards (rank_sum.h).
  BlockView summed = {};
};

class ExchangeThread {
 public:
  // `members`: a stream socket to each rank, by rank; invalid for this one. `group`: the group's
  // name, for messages.
  ExchangeThread(std::string group, uint32_t rank, std::vector<UniqueFd> members,
                 int64_t timeout_ms, const Clock* clock);
  // Gives up exchanges in progress.
  ~ExchangeThread();
  ExchangeThread(const ExchangeThread&) = delete;
  ExchangeThread& operator=(const ExchangeThread&) = delete;

  // Returns the exchange's number, from 1. The memory of its legs is the thread's until it has
  // ended.
  uint64_t Start(SocketExchange exchange);
  // True when the exchange is complete, or the group has failed; its memory is the caller's again.
  bool Ended(uint64_t number) const;
  // The result of an exchange that has ended. Errors: kCollectiveFailed, and the `why` of GiveUp.
  Status ResultOf(uint64_t number) const;
  // Returns true when an exchange may have ended since the last call; false after `wait_ms`.
  bool AwaitChange(int wait_ms);
  // Fails everything that has not ended with `why`; returns when that is done.
  void GiveUp(const Status& why);

 private:
  struct Header {
    uint64_t magic, number, bytes;
    uint32_t rank;
    OperationTag tag;
  };
  struct Direction {      // one direction to one rank
    uint64_t number = 1;  // the current exchange
    uint64_t done = 0;    // bytes of its header and leg
    Header header{};
    std::string lost{};  // why no byte moves any more; empty: the direction works
  };
  struct Member {
    UniqueFd socket;
    Direction out, in;
  };
  struct Command {
    SocketExchange exchange;
    Status give_up;  // not ok: a request to give up instead
  };

  // Used by the thread only.
  void Run();
  void AwaitWork();
  void TakeCommands();
  const Leg* Current(size_t member, bool outward);
  void Send(size_t member);
  void Receive(size_t member);
  // Bytes of the member's incoming leg that there is room for now.
  uint64_t Room(size_t member);
  bool MayReceive(size_t member);
  void Sum(const SocketExchange& exchange) const;
  bool ReceivePart(Direction* in, int socket, std::byte* to, uint64_t bytes);
  bool HeaderFits(size_t member);
  void EndThoseComplete();
  void LookForLost();
  void LookAtTheTime();
  void Fail(Status why);
  Status Broken(const std::string& why) const;
  std::string Owing() const;

  const std::string group_;
  const uint32_t rank_;
  const int64_t timeout_ns_;
  const Clock* const clock_;
  std::vector<Member> members_;
  std::deque<SocketExchange> in_work_;
  uint64_t oldest_ = 1;   // number of the first in progress
  int64_t moved_ns_ = 0;  // when a byte moved last, or the first exchange began
  std::vector<Command> taken_;

  // Shared by both threads.
  EventQueue<Command> commands_;
  UniqueFd changed_;
  std::atomic<uint64_t> complete_{0};  // all exchanges up to this one
  std::atomic<bool> failed_{false};
  Status failure_;  // written before failed_ is set

  uint64_t started_ = 0;  // used by the caller only
  std::thread thread_;
};

}  // namespace tidepool::trainer
