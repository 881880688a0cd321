// FlagChunkService: a session with MemoryServer like one with an rCache on a device: a copy begins
// when its ticket's `ready` is reached, and ends with `done`. It also drives all that goes on
// beside the CPU: the streams that it opens, and whatever a test adds.
//
// One thread (a rank's). Nothing happens but in Test, Wait and Drive: there, one of all actors that
// can do something is chosen by the seed, so requests are served in any order, and streams move
// piece by piece in any order. Runs of one rank repeat exactly. When a copy begins the range
// becomes NaN, so memory that is read too early or given away too early shows in the values. When
// no actor can do anything any more, and this rank has no peers to wait for, everything is stuck:
// tickets then fail with kInternal. With threads the streams have one each, and run when they like.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/host/host_device.h"
#include "tests/fakes/memory_chunk_service.h"

namespace tidepool::testing {

struct FlagServiceSetup {
  Rank rank = 0;
  uint64_t rcache_bytes = 0;
  uint64_t seed = 1;
  bool alone = true;  // no other thread moves anything
  uint32_t copy_threads = 0;
  // The device whose memory the rCache is, and whose streams run by themselves; it outlives the
  // service. Null: a host device, and the rCache is memory of the host.
  device::Device* device = nullptr;
};

class FlagChunkService final : public MemoryChunkService {
 public:
  FlagChunkService(MemoryServer* server, const FlagServiceSetup& setup);

  device::Device* device() { return device_ != nullptr ? device_ : &host_; }
  // Opens a stream, which is one of the actors where it has no thread.
  device::Stream* OpenStream();
  // Adds an actor: it does something and returns true, or cannot.
  void AddActor(std::function<bool()> actor) { actors_.push_back(std::move(actor)); }
  // Lets things happen until `passed`; false when everything is stuck before that.
  bool Drive(const std::function<bool()>& passed);

  client::TicketFlags FlagsOf(client::Ticket ticket) const override;
  bool Test(client::Ticket ticket) override;
  Result<client::Outcome> Wait(client::Ticket ticket) override;

  // The n-th request is taken, and the session ends when it is served.
  void FailAnswerOf(uint64_t request) { fail_answer_ = request; }
  // The n-th request is refused; the session goes on, and nobody stores its `done`.
  void RefuseRequest(uint64_t request) { refuse_ = request; }
  // The session ends, as it does when its process does.
  void Leave() { End(Status(ErrorId::kSessionEnded, "the rank has left")); }
  // How often the CPU stood still in Wait, because the answer was not there yet.
  uint64_t blocked_waits() const { return blocked_waits_; }

 private:
  Status Take(Request* request) override;
  bool CanServe(client::Ticket ticket, const Request& request) const;
  void Serve(client::Ticket ticket, Request* request);
  // Ends the session: all tickets have their answer, no stream waits for one.
  void End(const Status& why);
  // Lets one actor do something; false when none can.
  bool Step();

  const bool alone_;
  device::Device* const device_;
  device::HostDevice host_;
  std::vector<std::unique_ptr<device::Stream>> streams_;
  std::vector<std::function<bool()>> actors_;
  Status over_;
  uint64_t fail_answer_ = UINT64_MAX, refuse_ = UINT64_MAX, blocked_waits_ = 0, idle_ = 0;
};

}  // namespace tidepool::testing
