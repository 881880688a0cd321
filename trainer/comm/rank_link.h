// RankLink: ordered messages from one rank of a machine to another, in one direction.
//
// One thread (the trainer's main thread) calls all methods; the link's thread moves the bytes
// (exchange_thread.h), so a message proceeds while the caller computes. LocalMeeting::MakeLink
// makes it, at both ends. Both ends name the same messages of the same sizes in the same order: a
// difference, or a lost peer, ends the link for good at both ends, with an error. A peer's bytes
// are written only into the memory given for them.
// Memory: the caller owns a message's bytes and must leave them alone until the message has ended;
// the link allocates none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/comm/exchange_thread.h"
#include "trainer/comm/socket_collective.h"

namespace tidepool::trainer {

// Which rank sends to which.
struct LinkSpec {
  std::string name;  // unique in the run; equal at both ends
  uint32_t from = 0, to = 0;
};

class RankLink {
 public:
  // `group`: of the two ranks; `peer`: the other one's rank in it.
  RankLink(SocketGroup group, uint32_t peer, bool sends);

  // True at the end that sends.
  bool sends() const { return sends_; }
  // Starts the next message: sends, or fills, bytes[count]. `name` is compared with the other
  // end's; its last 40 characters count. Returns the message's number, from 1.
  uint64_t Start(const std::string& name, void* bytes, uint64_t count);
  // True when Wait would not block.
  bool Ended(uint64_t number) const { return thread_.Ended(number); }
  // Blocks until the message has been sent or received. Errors: kCollectiveFailed (the peer is
  // gone, is at another message, or the time-out passed), and the reason why the run cannot go on.
  Status Wait(uint64_t number);
  // Messages in flight end soon, and every later call fails with `why`.
  void GiveUp(const Status& why) { thread_.GiveUp(why); }

 private:
  const uint32_t peer_, members_;
  const bool sends_;
  const std::function<Status()> doomed_;
  ExchangeThread thread_;
};

}  // namespace tidepool::trainer
