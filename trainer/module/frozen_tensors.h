// FrozenTensors: the values of a module's frozen parameters as the bytes of a layout's frozen
// chunks: hashed for their names at the server, and read by an upload.
//
// One thread. Keeps the tensors, which may be in a mapped file, until destruction. Jobs of one user
// whose frozen chunks have the same bytes share them in the pool
// (docs/decisions/021-frozen-base.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/formats/content_hash.h"
#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

class FrozenTensors {
 public:
  // `layout` outlives the object.
  explicit FrozenTensors(const ChunkLayout& layout);

  // Adds the values of a frozen parameter: dense, of its chunk's dtype (of any dtype if the chunk
  // is raw), in host memory. Call once per parameter.
  void Give(ParameterId parameter, const at::Tensor& values);
  // Reads bytes of the frozen chunk `index` (counted from the first frozen one) from byte `begin`
  // on; padding is zeros.
  void Read(size_t index, uint64_t begin, std::span<std::byte> bytes) const;
  // The name of each frozen chunk.
  std::vector<ContentHash> HashChunks() const;

 private:
  struct Piece {
    uint64_t begin = 0;  // byte in the chunk
    at::Tensor values;
  };

  const ChunkLayout& layout_;
  const ChunkId first_;                     // frozen chunk
  std::vector<std::vector<Piece>> pieces_;  // by frozen chunk
};

}  // namespace tidepool::trainer
