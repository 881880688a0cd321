#include "memserver/residency/pool/moment_landing.h"

#include <sys/mman.h>

#include <algorithm>

namespace tidepool::memserver {

void Unmap::operator()(std::byte* memory) const {
  munmap(memory, bytes);
}

std::byte* MomentLanding::Place(ChunkId chunk, uint64_t elements, Rank rank, uint32_t plane,
                                uint64_t element) {
  auto found = chunks_.find(chunk);
  if (found == chunks_.end()) {
    const auto of_rank = [rank](const auto& each) { return each.second.rank == rank; };
    if (std::count_if(chunks_.begin(), chunks_.end(), of_rank) >= kChunksARank) return nullptr;
    found = chunks_.try_emplace(chunk).first;
    found->second.rank = rank;
  }

  auto& memory = found->second.planes[plane - 1];
  if (memory == nullptr) {
    const uint64_t bytes = elements * sizeof(uint32_t);
    void* const at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    memory = {static_cast<std::byte*>(at), Unmap{bytes}};
  }
  return memory.get() + element * sizeof(uint32_t);
}

MomentLanding::Words MomentLanding::From(ChunkId chunk, uint64_t element) const {
  Words words{};
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return words;
  for (uint32_t i = 0; i < kPlanes; ++i) {
    const std::byte* const memory = found->second.planes[i].get();
    if (memory != nullptr) words[i] = reinterpret_cast<const uint32_t*>(memory) + element;
  }
  return words;
}

}  // namespace tidepool::memserver
