// ReadMoeFile: parses a file that gives the experts of each block, for models whose blocks differ.
//
// Any thread; reads a file. One line for one or more blocks, counted from 0:
//
//   top-k=2, aux=0.01                    # without blocks: holds for all lines below
//   layers=0-1, experts=8, ep=4
//   layers=2, experts=16, ep=2, residual=yes
//
// Keys are those of --moe but `every`. What a line does not give is the preset's, or the default.
// Blocks that no line names have no experts.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// True for the name of a file: text without "=", or that begins with "/" or ".".
bool IsMoeFile(const std::string& moe);

// The experts of each of the shape's blocks; `shape`: before --moe, its `moe` has the defaults.
// Errors: kConfigUnreadable, kConfigBadValue (names the line: a bad key or value, blocks the model
// does not have or that are named twice, no number of experts; or no line names a block).
Result<std::vector<MoeSizes>> ReadMoeFile(const std::string& file, const GptShape& shape);

}  // namespace tidepool::trainer
