// BuildLayout: packs a model's parameters into chunks (Elixir v1, section IV; Elixir v2, section
// 4.2 and appendix A.2).
//
// Any thread; a pure function: all ranks that pass the same notes and options get the same layout.
// Rules, in this order, for each data group and dtype:
//  1. a parameter that is used more than once gets a resident chunk of its own;
//  2. parameters named in `resident` share resident chunks;
//  3. if the rest is less than one chunk, it is fused into one small resident chunk (so are the
//     norms that a 16-bit model keeps in fp32);
//  4. otherwise it is packed greedily, in the order of the notes, into chunks of the one common
//     size: first what has no unit, then each unit into chunks of its own.
// Frozen parameters are packed by the same rules into chunks of their own, after all others. The
// common size is then searched for them alone: jobs that train different adapters over one base
// have the same frozen chunks, and can share them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// The layout's input for one parameter. Notes come in order of use if it is declared or recorded
// (trainer/hooks/use_order.h), else in order of registration.
struct ParameterNote {
  std::string name;
  std::vector<uint64_t> dims;
  uint32_t optimizer_group = 0;
  uint32_t data_group = 0;
  bool multi_use = false;
  bool frozen = false;  // read and never trained
  // Parameters with the same number, other than 0, are used together in a micro-batch, or not at
  // all (an expert's). Numbers ascend in the order of the notes.
  uint32_t unit = 0;
  // nullopt: that of the options. A trained parameter has this or fp32, a frozen one any; kRaw:
  // `dims` count bytes.
  std::optional<DType> dtype = std::nullopt;
};

// How to pack parameters.
struct LayoutOptions {
  DType dtype =
      DType::kF32;  // of the job; the layout's is fp32 where no trained parameter has this
  uint32_t world = 1;
  std::vector<std::vector<Rank>> data_groups;  // empty: one group of all ranks
  uint64_t chunk_bytes = 0;                    // 0: searched; else rounded up for the shards
  // Upper limit of the search, unless a parameter is larger.
  uint64_t chunk_bytes_max = 64 * kMiB;
  // rCache bytes for blocks; 0: a quarter of the evictable parameters.
  uint64_t rcache_block_bytes = 0;
  // The search leaves room for this many blocks (as Elixir v2's search does).
  uint32_t blocks_min = 4;
  std::vector<std::string> resident;  // names of parameters to make resident
  // False: skips rule 3, so that parameters have the order of the notes whatever the groups' sizes,
  // except those of rules 1 and 2.
  bool fuses_small = true;
};

// Errors: kParameterTooLarge (a given chunk size below the largest parameter), kUsageError
// (inconsistent notes or options).
Result<ChunkLayout> BuildLayout(std::span<const ParameterNote> notes, const LayoutOptions& options);

}  // namespace tidepool::trainer
