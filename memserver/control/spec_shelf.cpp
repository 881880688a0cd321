#include "memserver/control/spec_shelf.h"

#include <string>

#include "shm/spec/decode.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::memserver {

namespace {
constexpr uint64_t kBlock = 32;  // approximate overhead of an allocation, in bytes
}  // namespace

uint64_t DecodedBytes(const shm::JobSpec& spec) {
  uint64_t bytes = sizeof spec + shm::SumsBytes(spec.chunks.size(), spec.frozen.size()) +
                   spec.chunks.capacity() * sizeof(shm::ChunkSpec) +
                   spec.frozen.capacity() * sizeof(shm::FrozenChunkSpec) +
                   spec.parameters.capacity() * sizeof(shm::ParameterSpec);

  const size_t in_place = std::string().capacity();
  for (const shm::ParameterSpec& parameter : spec.parameters) {
    if (parameter.name.capacity() > in_place) bytes += parameter.name.capacity() + kBlock;
    if (parameter.dims.capacity() > 0)
      bytes += parameter.dims.capacity() * sizeof(uint64_t) + kBlock;
  }
  return bytes;
}

Result<std::shared_ptr<const shm::JobSpec>> SpecShelf::Decode(uint32_t uid,
                                                              std::span<const std::byte> bytes,
                                                              PeerMemory::Share* encoded) {
  const auto key = std::pair(uid, HashOf(bytes));
  const auto known = held_.find(key);
  if (known != held_.end()) {
    if (const std::shared_ptr<const Held> held = known->second.lock()) {
      TP_RETURN_IF_ERROR(encoded->Resize(0));
      return std::shared_ptr<const shm::JobSpec>(held, &held->spec);
    }
  }

  decoded_bytes_ += bytes.size();
  TP_ASSIGN_OR_RETURN(shm::JobSpec spec, shm::Decode(bytes));
  TP_RETURN_IF_ERROR(encoded->Resize(0));
  PeerMemory::Share share = memory_->Open(uid);
  TP_RETURN_IF_ERROR(share.Resize(DecodedBytes(spec)));
  const auto held = std::make_shared<const Held>(Held{std::move(spec), std::move(share)});
  std::erase_if(held_, [](const auto& entry) { return entry.second.expired(); });
  held_.insert_or_assign(key, held);
  return std::shared_ptr<const shm::JobSpec>(held, &held->spec);
}

}  // namespace tidepool::memserver
