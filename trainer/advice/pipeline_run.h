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

// How many groups of ranks train sequences of their own: the columns of a pipeline, else each rank
// is one.
uint32_t ColumnsOf(const RunOptions& options, uint32_t world);
// The one that a rank belongs to. Requires that the columns divide the world.
uint32_t ColumnOfRank(const RunOptions& options, uint32_t world, Rank rank);

// Whether a run of `world` ranks can go through the stages that were asked for; ok where none were.
// Errors: kUsageError (more stages or ranks than layers, fewer stages than ranks, columns
// that do not divide the ranks, and flags
// that have no meaning with --pipeline).
Status CheckPipelineRun(const RunOptions& options, const GptShape& shape, uint32_t world);

// Checks the location of its ranks. Errors: kUsageError (a GPU, several machines).
Status CheckPipelinePlace(const RunOptions& options, const RankPlace& place, bool is_gpu);

}  // namespace tidepool::trainer
