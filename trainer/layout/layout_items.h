// Item, Sorted: the parameters that BuildLayout packs, sorted by kind, dtype, data group and way of
// packing; and checks of its input.
//
// Any thread; values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/layout/build_layout.h"

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

  uint64_t element_bytes() const { return BytesOf(dtype); }
};
// By dtype, in the order of DType: fp32 first.
using Kind = std::array<Sorted, 4>;

// The number of elements of a parameter. Errors: kUsageError (an extent of 0, or too many).
Result<uint64_t> ElementsOf(const ParameterNote& note);
// Errors: kUsageError (a group without members, out of order, or with ranks that there are not).
Status CheckGroups(const LayoutOptions& options, const std::vector<std::vector<Rank>>& groups);

}  // namespace tidepool::trainer
