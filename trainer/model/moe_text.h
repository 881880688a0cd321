// ReadMoe: the experts of a model as text: "every=2,experts=8,top-k=2,capacity=1.25".
//
// Any thread; pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// `moe` with the values that the text names: every, experts, top-k, width, ep, capacity, aux,
// z. What a
// text that turns experts on does not name is: every block, two of them a token, as wide as the
// model's MLP. Errors: kUsageError (a key or value that is none).
Result<MoeSizes> ReadMoe(const std::string& text, const MoeSizes& moe);
// Errors: kUsageError (a shape that has experts and cannot have them: its form, fewer experts than
// a token is to have, a block number beyond the model's, and the like).
Status CheckMoe(const GptShape& shape);
// "8 experts in every 2nd block, 2 a token, dropless", for people.
std::string MoeText(const MoeSizes& moe);

}  // namespace tidepool::trainer
