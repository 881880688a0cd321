#include "trainer/module/frozen_tensors.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kHashPieceBytes = 4 * kMiB;

}  // namespace

FrozenTensors::FrozenTensors(const ChunkLayout& layout)
    : layout_(layout),
      first_(layout.TrainedChunks()),
      pieces_(layout.chunks.size() - layout.TrainedChunks()) {}

void FrozenTensors::Give(ParameterId parameter, const at::Tensor& values) {
  const ChunkId chunk = layout_.parameters[parameter].chunk;
  pieces_[chunk - first_].push_back({layout_.ByteBegin(parameter), values});
}

void FrozenTensors::Read(size_t index, uint64_t begin, std::span<std::byte> bytes) const {
  std::memset(bytes.data(), 0, bytes.size());
  const uint64_t end = begin + bytes.size();

  for (const Piece& piece : pieces_[index]) {
    const uint64_t from = std::max(begin, piece.begin);
    const uint64_t to = std::min<uint64_t>(end, piece.begin + piece.values.nbytes());
    if (from >= to) continue;
    const auto* data = static_cast<const std::byte*>(piece.values.const_data_ptr());
    std::memcpy(bytes.data() + (from - begin), data + (from - piece.begin), to - from);
  }
}

std::vector<ContentHash> FrozenTensors::HashChunks() const {
  std::vector<ContentHash> hashes;
  std::vector<std::byte> bytes;
  for (size_t index = 0; index < pieces_.size(); ++index) {
    ContentHasher hasher;

    const uint64_t size = layout_.ChunkBytes(static_cast<ChunkId>(first_ + index));
    for (uint64_t begin = 0; begin < size; begin += bytes.size()) {
      bytes.resize(std::min(kHashPieceBytes, size - begin));
      Read(index, begin, bytes);
      hasher.Update(bytes);
    }

    hashes.push_back(hasher.Finish());
  }
  return hashes;
}

}  // namespace tidepool::trainer
