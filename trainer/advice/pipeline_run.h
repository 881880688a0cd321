// PipelineRun: checks of `trainer run --pipeline`, before anything is started.
//
// Any thread; torch-free; pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "trainer/launch/rank_place.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// The number in --pipeline; 0 for auto. Errors: kUsageError.
Result<uint32_t> StagesOf(const std::string& text);
// Errors: kUsageError, if adapters are trained.
Status CheckNoAdapters(const RunOptions& options);

// Number of groups of ranks with sequences of their own: the columns of a pipeline, else one per
// rank.
uint32_t ColumnsOf(const RunOptions& options, uint32_t world);
// The group of a rank. Requires that the columns divide the world.
uint32_t ColumnOfRank(const RunOptions& options, uint32_t world, Rank rank);

// Checks that a run of `world` ranks can use the requested stages and columns. Errors: kUsageError
// (more stages or ranks of a column than layers, fewer stages than ranks of a column, columns that
// do not divide the ranks, flags that have no meaning with --pipeline, its other flags without it).
Status CheckPipelineRun(const RunOptions& options, const GptShape& shape, uint32_t world);

// Checks the location of its ranks. Errors: kUsageError (a GPU, several machines).
Status CheckPipelinePlace(const RunOptions& options, const RankPlace& place, bool is_gpu);

}  // namespace tidepool::trainer
