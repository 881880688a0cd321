// ReadMoe: parses a model's experts: "every=2,experts=8,top-k=2,capacity=1.25". Those of blocks
// that differ: trainer/model/moe/moe_file.h.
//
// Any thread; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// `moe` with the values in the text: every, experts, top-k, width, ep, capacity, aux, z, residual.
// Defaults of a text that turns experts on: every block, two experts per token, as wide as the
// model's MLP. Errors: kUsageError (an unknown key or a bad value).
Result<MoeSizes> ReadMoe(const std::string& text, const MoeSizes& moe);
// Takes a single key into `moe`. Returns the error, or "".
std::string TakeMoeKey(std::string_view name, std::string_view value, MoeSizes* moe);
// The keys of one block's experts, for ReadMoe: all but every and ep. "" without experts.
std::string MoeWords(const MoeSizes& moe);

// Errors: kUsageError (the shape cannot have its experts: wrong form, fewer experts than a token
// needs, a block number beyond the model's, and similar).
Status CheckMoe(const GptShape& shape);
// "8 experts in one of 2 blocks, 2 a token, dropless"; where blocks differ, "block 0: 8 experts, 2
// a token, dropless; blocks 2-3: ...".
std::string MoeText(const GptShape& shape);
// "block 1", "blocks 0-2,5" of "block"; `numbers`: ascending, not empty.
std::string NumbersText(const std::string& what, const std::vector<uint32_t>& numbers);

}  // namespace tidepool::trainer
