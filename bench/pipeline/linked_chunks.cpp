#include "bench/pipeline/linked_chunks.h"

#include <cstring>
#include <utility>

#include "base/units.h"
#include "memserver/traffic/copy_lane.h"

namespace tidepool::bench {
namespace {

Status NotHere(const char* what) {
  return Status(ErrorId::kInternal, std::string(what) + " is not measured here");
}

}  // namespace

std::vector<std::vector<std::byte>> NumberedWeights(const trainer::ChunkLayout& layout) {
  std::vector<std::vector<std::byte>> weights;
  for (uint32_t chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    weights.emplace_back(layout.ChunkBytes(chunk));
    std::vector<std::byte>& bytes = weights.back();
    std::memcpy(bytes.data(), &chunk, sizeof(chunk));
    std::memcpy(bytes.data() + bytes.size() - sizeof(chunk), &chunk, sizeof(chunk));
  }
  return weights;
}

bool HasNumber(std::span<const std::byte> weights, uint32_t chunk) {
  const std::byte* const end = weights.data() + weights.size() - sizeof(chunk);
  return std::memcmp(weights.data(), &chunk, sizeof(chunk)) == 0 &&
         std::memcmp(end, &chunk, sizeof(chunk)) == 0;
}

LinkedChunks::LinkedChunks(const Setup& setup)
    : setup_(setup),
      rcache_(setup.rcache_bytes + kPageBytes),
      gradients_(setup.layout->chunks.size()) {
  const auto address = reinterpret_cast<uintptr_t>(rcache_.data());
  attachment_.rcache = rcache_.data() + (RoundUp(address, kPageBytes) - address);
  attachment_.rcache_bytes = setup.rcache_bytes;
  attachment_.weights_ready = true;
  attachment_.takes_zeros = true;
}

Result<client::Ticket> LinkedChunks::StartPutWeights(const client::Range&) {
  return NotHere("a put");
}

Result<client::Ticket> LinkedChunks::StartEndStep(const client::StepEnd&) {
  return NotHere("an update");
}

client::Ticket LinkedChunks::Start(LinkCopy copy) {
  copy.gpu = setup_.gpu;
  copy.complex = setup_.complex;
  const uint64_t bytes = copy.bytes;
  const client::Ticket ticket = setup_.links->Start(std::move(copy));
  bytes_.emplace(ticket, bytes);
  return ticket;
}

Result<client::Ticket> LinkedChunks::StartFetch(const client::Range& range,
                                                const client::Wanted& wanted) {
  const uint64_t element = BytesOf(setup_.layout->chunks[range.chunk].dtype);
  LinkCopy copy;
  copy.to = attachment_.rcache + range.rcache_offset;
  copy.from = (*setup_.weights)[range.chunk].data() + range.element_begin * element;
  copy.bytes = range.element_count * element;
  copy.uses_ahead = wanted.uses_ahead;
  return Start(std::move(copy));
}

// Gradients have the lowest priority: the next stage needs boundary tensors first.
Result<client::Ticket> LinkedChunks::StartSubmitGradient(const client::Range& range, Version,
                                                         uint32_t) {
  std::vector<std::byte>& to = gradients_[range.chunk];
  to.resize(range.element_count * setup_.gradient_element_bytes);
  LinkCopy copy;
  copy.to = to.data();
  copy.from = attachment_.rcache + range.rcache_offset;
  copy.bytes = to.size();
  copy.up = false;
  copy.uses_ahead = memserver::kUsesAheadMax;
  return Start(std::move(copy));
}

// One byte, which counts for nothing: a request without any takes no time on a link.
Result<client::Ticket> LinkedChunks::StartSubmitZeros(const client::Range& range, Version,
                                                      uint32_t) {
  std::vector<std::byte>& to = gradients_[range.chunk];
  to.resize(1);

  LinkCopy copy;
  copy.to = to.data();
  copy.from = attachment_.rcache;
  copy.bytes = 1;
  copy.up = false;

  const client::Ticket ticket = Start(std::move(copy));
  bytes_[ticket] = 0;
  return ticket;
}

Result<client::Outcome> LinkedChunks::Wait(client::Ticket ticket) {
  setup_.links->Wait(ticket);
  client::Outcome outcome;
  outcome.bytes = bytes_.at(ticket);
  bytes_.erase(ticket);
  return outcome;
}

Status LinkedChunks::DeclareSchedule(std::span<const ChunkId>) {
  return {};
}

Status LinkedChunks::SaveWeights(int, const std::string&, Version) {
  return NotHere("a save");
}

}  // namespace tidepool::bench
