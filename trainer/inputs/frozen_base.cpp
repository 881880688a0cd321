#include "trainer/inputs/frozen_base.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "optim/kernels/convert_scalar.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kFrozenPieceBytes = 4 * kMiB;

}  // namespace

Result<FrozenBase> FrozenBase::Open(const std::string& path, const ChunkLayout& layout) {
  TP_ASSIGN_OR_RETURN(WeightsFile file, WeightsFile::Open(path));
  FrozenBase base(std::move(file), layout.dtype);
  std::set<std::string_view> known;
  const ChunkId first = layout.TrainedChunks();

  for (ChunkId chunk = first; chunk < layout.chunks.size(); ++chunk)
    base.chunks_.push_back({layout.chunks[chunk].elements, {}});

  for (const ParameterPlace& place : layout.parameters) {
    if (place.chunk < first) continue;
    TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor, base.file_.Expect(place.name, place.dims));
    base.chunks_[place.chunk - first].pieces.push_back(
        {tensor, place.element_begin, place.element_count});
    known.insert(place.name);
  }

  for (const SafetensorsEntry& tensor : base.file_.header().tensors) {
    if (known.contains(tensor.name)) continue;
    return Status(ErrorId::kDataBad, "the model has no parameter " + tensor.name)
        .Where(path)
        .Why("the file is that of another model")
        .Fix("give the weights of the model that config.json beside them describes");
  }
  return base;
}

Status FrozenBase::ReadPiece(const Piece& piece, uint64_t begin, std::span<std::byte> bytes) const {
  const uint64_t size = BytesOf(dtype_), end = begin + bytes.size() / size;
  const uint64_t from = std::max(begin, piece.element_begin),
                 to = std::min(end, piece.element_begin + piece.element_count);
  if (from >= to) return {};

  std::byte* out = bytes.data() + (from - begin) * size;
  if (dtype_ == DType::kF32)
    return file_.Read(*piece.tensor, from - piece.element_begin,
                      {reinterpret_cast<float*>(out), to - from});

  std::vector<float> values(to - from);
  TP_RETURN_IF_ERROR(file_.Read(*piece.tensor, from - piece.element_begin, values));
  for (uint64_t i = 0; i < values.size(); ++i) optim::NarrowElement(out, dtype_, i, values[i]);
  return {};
}

Status FrozenBase::Read(size_t index, uint64_t begin, std::span<std::byte> bytes) const {
  std::memset(bytes.data(), 0, bytes.size());
  for (const Piece& piece : chunks_[index].pieces)
    TP_RETURN_IF_ERROR(ReadPiece(piece, begin / BytesOf(dtype_), bytes));
  return {};
}

Result<std::vector<ContentHash>> FrozenBase::HashChunks() const {
  std::vector<ContentHash> hashes;
  std::vector<std::byte> bytes;
  for (size_t index = 0; index < chunks_.size(); ++index) {
    ContentHasher hasher;
    const uint64_t size = chunks_[index].elements * BytesOf(dtype_);
    for (uint64_t begin = 0; begin < size; begin += bytes.size()) {
      bytes.resize(std::min(kFrozenPieceBytes, size - begin));
      TP_RETURN_IF_ERROR(Read(index, begin, bytes));
      hasher.Update(bytes);
    }

    hashes.push_back(hasher.Finish());
  }
  return hashes;
}

ContentHash FrozenBase::HashLayout() const {
  std::string text = NameOf(dtype_);
  const auto number = [&text](uint64_t value) { text += " " + std::to_string(value); };

  for (const Chunk& chunk : chunks_) {
    text += "\nchunk";
    number(chunk.elements);
    for (const Piece& piece : chunk.pieces) {
      text += "\n" + piece.tensor->name;
      number(piece.element_begin);
      number(piece.element_count);
    }
  }

  return HashOf(std::as_bytes(std::span(text)));
}

}  // namespace tidepool::trainer
