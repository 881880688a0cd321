// LinkedChunks: a chunk service that replaces memserver for the rCache of an emulated rank: chunks
// are in host memory and are copied over paced links.
//
// One thread (the rank's). Ranks share the weights in host memory and only read them; each rank has
// its own host memory for gradients. Puts, ends of steps and saves fail with kInternal.
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

// The weights of a job, by chunk, in bytes; each chunk begins and ends with its number.
std::vector<std::vector<std::byte>> NumberedWeights(const trainer::ChunkLayout& layout);
// True if `weights` are those of `chunk`, whole.
bool HasNumber(std::span<const std::byte> weights, uint32_t chunk);

class LinkedChunks final : public client::ChunkService {
 public:
  // The rank's chunks, GPU and links.
  struct Setup {
    const trainer::ChunkLayout* layout = nullptr;
    const std::vector<std::vector<std::byte>>* weights = nullptr;  // NumberedWeights
    uint64_t gradient_element_bytes = 4;
    uint64_t rcache_bytes = 0;
    uint32_t gpu = 0, complex = 0;
    PacedLinks* links = nullptr;
  };
  // Everything that the setup points to must outlive the service.
  explicit LinkedChunks(const Setup& setup);

  const client::Attachment& attachment() const override { return attachment_; }
  Result<client::Ticket> StartPutWeights(const client::Range& range) override;
  Result<client::Ticket> StartFetch(const client::Range& range,
                                    const client::Wanted& wanted) override;
  Result<client::Ticket> StartSubmitGradient(const client::Range& range, Version version,
                                             uint32_t micro_batch) override;
  Result<client::Ticket> StartSubmitZeros(const client::Range& range, Version version,
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
  std::vector<std::vector<std::byte>> gradients_;  // by chunk; in host memory
  std::map<client::Ticket, uint64_t> bytes_;       // of copies in flight
};

}  // namespace tidepool::bench
