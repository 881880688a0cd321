// ReadMoe: parses a model's experts: "every=2,experts=8,top-k=2,capacity=1.25".
//
// Any thread; pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// `moe` with the values in the text: every, experts, top-k, width, ep, capacity, aux, z. Defaults
// of a text that turns experts on: every block, two experts per token, as wide as the model's MLP.
// Errors: kUsageError (an unknown key or a bad value).
Result<MoeSizes> ReadMoe(const std::string& text, const MoeSizes& moe);
// Errors: kUsageError (the shape cannot have its experts: wrong form, fewer experts than a token
// needs, a block number beyond the model's, and similar).
Status CheckMoe(const GptShape& shape);
// "8 experts in every 2nd block, 2 a token, dropless".
std::string MoeText(const MoeSizes& moe);

}  // namespace tidepool::trainer
