// LinkedChunks: a chunk service whose chunks lie in host memory and come and go over paced links:
// what a rank's rCache works with in the place of memserver.
//
// One thread (the rank's); the host memory is shared by ranks, each of which has chunks of its own
// or only reads.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/pipeline/paced_links.h"
#include "client/chunk_service.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::bench {

// The weights of a job, by chunk; each chunk begins and ends with its number.
std::vector<std::vector<std::byte>> NumberedWeights(const trainer::ChunkLayout& layout);
// The chunk whose weights lie there.
uint32_t NumberAt(const std::byte* weights);

class LinkedChunks final : public client::ChunkService {
 public:
  // Who asks, and of what.
  struct Setup {
    const trainer::ChunkLayout* layout = nullptr;
    const std::vector<std::vector<std::byte>>* weights = nullptr;  // NumberedWeights
    uint64_t gradient_element_bytes = 4;
    uint64_t rcache_bytes = 0;
    uint32_t gpu = 0, complex = 0;
    PacedLinks* links = nullptr;
  };
  // All that the setup names outlives the service.
  explicit LinkedChunks(const Setup& setup);

  const client::Attachment& attachment() const override { return attachment_; }
  Result<client::Ticket> StartPutWeights(const client::Range& range) override;
  Result<client::Ticket> StartFetch(const client::Range& range,
                                    const client::Wanted& wanted) override;
  Result<client::Ticket> StartSubmitGradient(const client::Range& range, Version version,
                                             uint32_t micro_batch) override;
  Result<client::Ticket> StartEndStep(const client::StepEnd& end) override;
  bool Test(client::Ticket ticket) override { return setup_.links->Ended(ticket); }
  Result<client::Outcome> Wait(client::Ticket ticket) override;
  Status DeclareSchedule(std::span<const ChunkId> order) override;
  Status SaveWeights(int dir_fd, const std::string& name, Version version) override;
  Status Detach() override { return {}; }

 private:
  client::Ticket Start(LinkCopy copy);

  const Setup setup_;
  client::Attachment attachment_;
  std::vector<std::byte> rcache_;
  std::vector<std::vector<std::byte>> gradients_;  // by chunk, in host memory
  std::map<client::Ticket, uint64_t> bytes_;       // in flight
};

}  // namespace tidepool::bench
