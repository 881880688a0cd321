// ExpertPlan: what --moe says of a run's model and ranks: the experts of each block, the ranks that
// share them, and the data groups of their parameters.
//
// Any thread; torch-free; pure except for reading the file of --moe.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/layout/build_layout.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// The shape with --moe applied; `weights`: the flag that gives saved weights, which must have the
// same tensors then, or "". Errors: kUsageError (CheckMoe; other tensors), those of ReadMoe and
// ReadMoeFile.
Result<GptShape> WithExperts(GptShape shape, const std::string& moe, const std::string& weights);
// Identifies the experts of --moe in a run's note: the text itself, or a hash of what its file says
// of the shape's blocks. "" without --moe.
std::string NoteOfExperts(const GptShape& shape, const std::string& moe);

// Checks that so many ranks can share the experts. Errors: kUsageError.
Status CheckExpertRanks(const GptShape& shape, const RunOptions& options, uint32_t world);
// The group of all ranks and, for each number of ranks that share experts, that of each sharing
// rank: the ranks with the same experts (ExpertGroup). Empty: only the group of all ranks.
std::vector<std::vector<Rank>> ExpertDataGroups(const GptShape& shape, uint32_t world);
// The ranks that share experts with `rank`: neighbours, for each number of ranks; none where each
// rank has all.
std::vector<std::vector<Rank>> ExpertRanks(const GptShape& shape, Rank rank);

// Names of tables that stay in the rCache. A chunk holds at least the largest parameter, and an
// expert has chunks of its own, as a tile of a linear layer may have: tables that are larger than
// all else would make blocks of which these fill little.
std::vector<std::string> TablesThatStay(const GptShape& shape,
                                        const std::vector<ParameterNote>& notes);

}  // namespace tidepool::trainer
