// FrozenBase: the weights of a saved model as the frozen chunks of a job that trains adapters over
// it.
//
// One thread at a time. All jobs with the same model, dtype, chunk size and number of ranks make
// the same chunks of a file, byte for byte, so that the pool holds them once
// (docs/decisions/021-frozen-base.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/dtype.h"
#include "base/status.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/inputs/weights_file.h"

namespace tidepool::trainer {

class FrozenBase {
 public:
  // Opens the frozen parameters of `layout` in the file at `path`, which holds exactly these, in
  // any order; reads no weights yet. Errors: those of WeightsFile::Open and Expect, kDataBad (a
  // tensor that the model does not have).
  static Result<FrozenBase> Open(const std::string& path, const ChunkLayout& layout);

  const WeightsFile& file() const { return file_; }
  // Reads bytes of the frozen chunk `index` (counted from the first frozen one) from byte `begin`
  // on, in the layout's dtype, rounded to nearest even if that is narrower; padding is zeros.
  // `begin` and the size are multiples of an element. Errors: kSafetensorsBad.
  Status Read(size_t index, uint64_t begin, std::span<std::byte> bytes) const;
  // Names all frozen chunks in one pass over the file. Errors: kSafetensorsBad.
  Result<std::vector<ContentHash>> HashChunks() const;
  // Hashes how the file is divided into chunks: with equal bytes in the file and an equal hash
  // here, the chunks' names are equal.
  ContentHash HashLayout() const;
  size_t chunks() const { return chunks_.size(); }

 private:
  struct Piece {
    const SafetensorsEntry* tensor;
    uint64_t element_begin, element_count;  // of the chunk
  };
  struct Chunk {
    uint64_t elements = 0;
    std::vector<Piece> pieces;  // in order
  };

  FrozenBase(WeightsFile file, DType dtype) : file_(std::move(file)), dtype_(dtype) {}
  // Reads elements of the chunk from `begin` on: as fp32 in `values`, and in its dtype in `bytes`.
  Status ReadPiece(const Piece& piece, uint64_t begin, std::span<std::byte> bytes) const;

  WeightsFile file_;
  DType dtype_;
  std::vector<Chunk> chunks_;
};

}  // namespace tidepool::trainer
