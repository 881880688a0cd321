// SumInRankOrder: the arithmetic of a reduce-scatter, separate from its transport.
//
// Any thread. The sum of an element is ((p[0] + p[1]) + p[2]) + ..., in fp32, rounded once to the
// element type at the end: the bits depend on the ranks' numbers alone, never on where in a block
// the element lies, on the chunk size or on who arrived first. (A ring reduce-scatter starts each
// part's sum at another rank, so with three or more ranks a different chunk size would give
// different bits.)
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tidepool::trainer {

// parts: [world][count] of `dtype`; out: [count], may be any of the parts.
void SumInRankOrder(const void* parts, uint32_t world, uint64_t count, DType dtype, void* out);

}  // namespace tidepool::trainer
