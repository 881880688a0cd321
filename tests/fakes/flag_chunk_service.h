// FlagChunkService: a session with MemoryServer as one with an rCache on a device is: a copy begins when its ticket's `ready` is reached,
// and ends with `done`. It also drives all that goes on beside the CPU: the streams that it opens, and whatever a test adds.
//
// One thread (a rank's). Nothing happens but in Test, Wait and Drive: there, one of all actors that can do something is chosen by the seed,
// so requests are served in any order, and streams move piece by piece in any order. Runs of one rank repeat exactly. When a copy begins
// the range becomes NaN, so memory that is read too early or given away too early shows in the values. When no actor can do anything any
// more, and this rank has no peers to wait for, everything is stuck: tickets then fail with kInternal. With threads the streams have one
// each, and run when they like.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "client/chunk_service.h"
#include "device/host_device.h"
#include "tests/fakes/memory_chunk_service.h"

namespace tidepool::testing {

struct FlagServiceSetup {
  Rank rank = 0;
  uint64_t rcache_bytes = 0;
  uint64_t seed = 1;
  bool alone = true;  // no other thread moves anything
  uint32_t copy_threads = 0;
};

class FlagChunkService final : public client::ChunkService {
 public:
  FlagChunkService(MemoryServer* server, const FlagServiceSetup& setup);

  device::Device* device() { return &device_; }
  // One of the actors, where it has no thread.
  device::Stream* OpenStream();
  // Does something and says so, or cannot.
  void AddActor(std::function<bool()> actor) { actors_.push_back(std::move(actor)); }
  // Lets things happen until `passed`; false when everything is stuck before.
  bool Drive(const std::function<bool()>& passed);

  const client::Attachment& attachment() const override { return attachment_; }
  Result<client::Ticket> StartPutWeights(const client::Range& range) override;
  Result<client::Ticket> StartFetch(const client::Range& range, const client::Wanted& wanted) override;
  Result<client::Ticket> StartSubmitGradient(const client::Range& range, Version version, uint32_t micro_batch) override;
  Result<client::Ticket> StartEndStep(const client::StepEnd& end) override;
  client::TicketFlags FlagsOf(client::Ticket ticket) const override;
  bool Test(client::Ticket ticket) override;
  Result<client::Outcome> Wait(client::Ticket ticket) override;
  Status DeclareSchedule(std::span<const ChunkId> order) override;
  Status SaveWeights(int, const std::string&, Version) override { return Status(ErrorId::kSaveFailed, "nothing is saved here"); }
  Status Detach() override { return {}; }

  // From the n-th request on, requests fail with kServerGone.
  void FailFrom(uint64_t request) { fail_from_ = request; }
  // The n-th request is taken, and the session ends when it is served.
  void FailAnswerOf(uint64_t request) { fail_answer_ = request; }
  // The n-th request is refused; the session goes on, and nobody stores its `done`.
  void RefuseRequest(uint64_t request) { refuse_ = request; }
  // The session ends, as it does when its process does.
  void Leave() { End(Status(ErrorId::kSessionEnded, "the rank has left")); }
  uint64_t requests() const { return last_; }
  uint64_t in_flight_max() const { return in_flight_max_; }
  // Of Wait, when the answer was not there yet: how often the CPU stood still.
  uint64_t blocked_waits() const { return blocked_waits_; }

 private:
  enum class Kind { kPut, kFetch, kSubmit };
  struct Request {
    Kind kind;
    client::Range range;
    Version version;
    uint32_t micro_batch;
    bool begun = false, answered = false;
    Status answer{};
  };

  Result<client::Ticket> Add(Request request);
  float* At(const client::Range& range) { return reinterpret_cast<float*>(attachment_.rcache + range.rcache_offset); }
  bool CanServe(client::Ticket ticket, const Request& request) const;
  void Serve(client::Ticket ticket, Request* request);
  Status CarryOut(const Request& request);
  // The session is over: all tickets have their answer, no stream waits for one.
  void End(const Status& why);
  // One actor does something; false when none can.
  bool Step();

  MemoryServer* server_;
  const Rank rank_;
  const bool alone_;
  std::vector<std::byte> memory_;
  client::Attachment attachment_;
  SplitMix64 random_;
  device::HostDevice device_;
  std::vector<std::unique_ptr<device::Stream>> streams_;
  std::vector<std::function<bool()>> actors_;
  std::map<client::Ticket, Request> requests_;
  client::Ticket last_ = 0;
  Status over_;
  uint64_t fail_from_ = UINT64_MAX, fail_answer_ = UINT64_MAX, refuse_ = UINT64_MAX, in_flight_max_ = 0, blocked_waits_ = 0, idle_ = 0;
};

}  // namespace tidepool::testing
