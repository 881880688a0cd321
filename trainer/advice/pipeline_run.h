// PipelineRun: what `trainer run --pipeline` is asked for, checked before anything is started.
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
// kUsageError, where adapters are trained; ok else.
Status CheckNoAdapters(const RunOptions& options);

// How many groups of ranks train sequences of their own: a pipeline is one, else each rank is.
uint32_t ColumnsOf(const RunOptions& options, uint32_t world);

// Whether a run of `world` ranks can go through the stages that were asked for; ok where none were.
// Errors: kUsageError (more stages or ranks than layers, fewer stages than ranks, and flags
// that have no meaning with --pipeline).
Status CheckPipelineRun(const RunOptions& options, const GptShape& shape, uint32_t world);

// Whether it can where its ranks are. Errors: kUsageError (a GPU, several machines).
Status CheckPipelinePlace(const RunOptions& options, const RankPlace& place, bool is_gpu);

}  // namespace tidepool::trainer
