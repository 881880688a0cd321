// MemoryServer and MemoryChunkService: a chunk server inside the test process, for fp32 jobs with
// any number of ranks.
//
// MemoryServer is shared by the ranks' threads (one mutex); each rank has a MemoryChunkService of
// its own.
// Like the real server it works on the caller's rCache memory some time between a request and its
// answer; here that moment is the answer itself, at a random number of Tests after the request. So
// memory that is read too early or overwritten too early shows in the values. Requests that break
// the contract of client/chunk_service.h are answered with kProtocolViolation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "client/chunk_service.h"
#include "device/device.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::testing {

class MemoryServer {
 public:
  explicit MemoryServer(const trainer::ChunkLayout* layout);

  // Parameters of the present version, by chunk and element. Call it while no step is being ended.
  // Those of frozen chunks are what the test writes here; they have no version.
  std::vector<std::vector<float>> values;
  Version version = 0;

  Status Put(Rank rank, const client::Range& range, const float* from);
  bool Exists(Version wanted);
  Status WaitVersion(Version wanted);
  // Waits until all ranks have put all their shards: the real server gives nothing of a chunk
  // before.
  Status WaitPut();
  Status Fetch(Rank rank, const client::Range& range, Version wanted, float* to);
  Status Submit(Rank rank, const client::Range& range, Version from_version, uint32_t micro_batch,
                const float* from);
  // The last rank applies values -= sum of gradients and makes the next version. Every member must
  // have handed in every chunk that is trained.
  Status EndStep(uint32_t micro_batches);
  // Nobody waits any longer: a rank has failed.
  void Break();
  bool broken();
  void Declare(std::span<const ChunkId> order);
  std::vector<ChunkId> declared;  // by the rank that declared last
  uint64_t submits = 0;

 private:
  Status CheckShard(Rank rank, const client::Range& range) const;
  bool AllPut() const;

  const trainer::ChunkLayout* layout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<float>> gradients_;
  std::set<std::tuple<Rank, ChunkId, uint32_t>> submitted_;  // in this step
  std::vector<std::vector<uint64_t>> put_;                   // by rank and chunk: elements put
  uint32_t ended_ = 0;
  bool broken_ = false;
};

// FlagChunkService derives from it.
class MemoryChunkService : public client::ChunkService {
 public:
  MemoryChunkService(MemoryServer* server, Rank rank, uint64_t rcache_bytes, uint64_t seed,
                     uint64_t delay_max)
      : MemoryChunkService(server, rank,
                           {.rcache_bytes = rcache_bytes, .bytes_before = 0, .seed = seed}) {
    delay_max_ = delay_max;
    attachment_.takes_zeros = true;
  }

  // As a server of an earlier release.
  void TakeNoZeros() { attachment_.takes_zeros = false; }

  const client::Attachment& attachment() const override { return attachment_; }
  Result<client::Ticket> StartPutWeights(const client::Range& range) override;
  Result<client::Ticket> StartFetch(const client::Range& range,
                                    const client::Wanted& wanted) override;
  Result<client::Ticket> StartSubmitGradient(const client::Range& range, Version version,
                                             uint32_t micro_batch) override;
  Result<client::Ticket> StartSubmitZeros(const client::Range& range, Version version,
                                          uint32_t micro_batch) override;
  Result<client::Ticket> StartEndStep(const client::StepEnd& end) override;
  bool Test(client::Ticket ticket) override;
  Result<client::Outcome> Wait(client::Ticket ticket) override;
  Status DeclareSchedule(std::span<const ChunkId> order) override;
  Status SaveWeights(int, const std::string&, Version) override {
    return Status(ErrorId::kSaveFailed, "nothing is saved here");
  }
  Status Detach() override { return {}; }

  // From the n-th request on, requests fail with kServerGone.
  void FailFrom(uint64_t request) { fail_from_ = request; }
  uint64_t requests() const { return last_; }
  uint64_t in_flight() const { return requests_.size(); }
  uint64_t in_flight_max() const { return in_flight_max_; }
  // What the last fetch said of its use.
  uint32_t uses_ahead() const { return uses_ahead_; }

 protected:
  enum class Kind { kPut, kFetch, kSubmit, kZeros };
  struct Request {
    Kind kind;
    client::Range range;
    Version version;
    uint32_t micro_batch;
    uint64_t delay = 0;                    // Tests until it is answered
    bool begun = false, answered = false;  // where there are flags
    Status answer{};
  };
  struct Memory {
    uint64_t rcache_bytes = 0;
    uint64_t bytes_before = 0;  // whole pages of the host beside the rCache: flags
    uint64_t seed = 0;
    // Makes the rCache, whose bytes then pass by its streams alone; null: the host's memory.
    device::Device* device = nullptr;
  };
  MemoryChunkService(MemoryServer* server, Rank rank, const Memory& memory);

  // Whether the next request is taken.
  virtual Status Take(Request* request);
  Status CarryOut(const Request& request);
  static client::Outcome OutcomeOf(const Request& request);
  void SpoilRange(const client::Range& range);

  // The pages in front of the rCache; with a device they are registered with it.
  std::byte* pages() const { return pages_; }

  MemoryServer* const server_;
  const Rank rank_;
  client::Attachment attachment_;
  SplitMix64 random_;
  std::map<client::Ticket, Request> requests_;
  client::Ticket last_ = 0;
  uint64_t fail_from_ = UINT64_MAX;

 private:
  Result<client::Ticket> Add(Request request);

  // Between the rCache and memory that a CPU may touch.
  void ReadRange(const client::Range& range, float* to);
  void WriteRange(const client::Range& range, const float* from);

  std::vector<std::byte> memory_;
  std::byte* pages_ = nullptr;
  std::unique_ptr<device::Registration> registered_;
  std::unique_ptr<device::Memory> rcache_;  // of the device
  std::unique_ptr<device::Stream> copies_;  // the server's
  uint64_t delay_max_ = 0, in_flight_max_ = 0;
  uint32_t uses_ahead_ = 0;
};

}  // namespace tidepool::testing
