// DescribePipeline: the text of `trainer estimate --pipeline`, with a timeline in characters;
// PipelineJson: the same for programs.
//
// Any thread; torch-free, pure.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/advice/pipeline_advice.h"

namespace tidepool::trainer {

// Data shown in addition to the advice.
struct PipelineWords {
  bool verbose = false;     // show all ways, and the search
  int64_t search_ns = 0;    // total time of the search
  uint64_t pool_bytes = 0;  // of the job's states
};

std::string DescribePipeline(const PipelineAdvice& advice, const PipelineWords& words);
std::string PipelineJson(const PipelineAdvice& advice, const PipelineWords& words);

// Host memory for all boundary tensors of a step, in bytes.
uint64_t ExchangeBytes(const PipelineAdvice& advice);

}  // namespace tidepool::trainer
