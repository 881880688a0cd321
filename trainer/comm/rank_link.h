// RankLink: messages from one rank of a machine to another one, in one direction and in order.
//
// One thread (the trainer's main thread) calls all methods; a thread of the link moves the bytes
// (exchange_thread.h), so a message goes on while the caller computes. Made by
// LocalMeeting::MakeLink, at both ends. Both ends name the same messages of the same sizes in the
// same order: what differs, or a peer that is gone, ends the link for good, at both ends, with an
// error. Bytes that a peer sends go nowhere but into the memory given for them.
// Memory: a message's bytes are the caller's, and the link's until the message has ended; the link
// needs none.
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
  // `group`: of the two ranks; `peer`: the other one's position there.
  RankLink(SocketGroup group, uint32_t peer, bool sends);

  // True at the end that sends.
  bool sends() const { return sends_; }
  // Starts the next message: bytes[count] goes, or is filled. `name` is compared with the other
  // end's; its last 40 characters count. Returns its number, from 1.
  uint64_t Start(const std::string& name, void* bytes, uint64_t count);
  // True when Wait would not wait.
  bool Ended(uint64_t number) const { return thread_.Ended(number); }
  // Blocks until the message has ended: it was sent, or has come. Errors: kCollectiveFailed (the
  // peer is gone, is at another message, or the time-out passed), and why the run cannot go on.
  Status Wait(uint64_t number);
  // What is in work ends, soon, and everything fails with `why` from here on.
  void GiveUp(const Status& why) { thread_.GiveUp(why); }

 private:
  const uint32_t peer_, members_;
  const bool sends_;
  const std::function<Status()> doomed_;
  ExchangeThread thread_;
};

}  // namespace tidepool::trainer
