// Item, Sorted: the parameters that BuildLayout packs, sorted by kind, dtype, data group and way of
// packing; and checks of its input.
//
// Any thread; values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/status.h"

namespace tidepool::trainer {

// One parameter to be packed.
struct Item {
  uint32_t note;
  uint64_t elements;
  uint32_t unit;
};

// Parameters of one kind (trained or frozen) and dtype, by data group.
struct Sorted {
  DType dtype = DType::kF32;
  std::vector<std::vector<Item>> multi_use, listed, packed;

  // Bytes of one element.
  uint64_t element_bytes() const { return BytesOf(dtype); }
};
// By dtype, in the order of DType: fp32 first.
using Kind = std::array<Sorted, 4>;

// The elements of the parameter `name`. Errors: kUsageError (an extent of 0, or too many of them).
Result<uint64_t> ElementsOf(const std::string& name, const std::vector<uint64_t>& dims);
// Errors: kUsageError (a group without members, out of order, or with ranks not below `world`).
Status CheckGroups(uint32_t world, const std::vector<std::vector<Rank>>& groups);

}  // namespace tidepool::trainer
