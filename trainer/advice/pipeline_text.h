// DescribePipeline: what `trainer estimate --pipeline` says of a pipeline, with a timeline in
// characters; PipelineJson: the same for programs.
//
// Any thread; torch-free, pure.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/advice/pipeline_advice.h"

namespace tidepool::trainer {

// What is shown beside the advice.
struct PipelineWords {
  bool verbose = false;     // all ways, and the search
  int64_t search_ns = 0;    // that all of it took
  uint64_t pool_bytes = 0;  // of the job's states
};

std::string DescribePipeline(const PipelineAdvice& advice, const PipelineWords& words);
std::string PipelineJson(const PipelineAdvice& advice, const PipelineWords& words);

// Bytes of host memory for all boundary tensors of a step.
uint64_t ExchangeBytes(const PipelineAdvice& advice);

}  // namespace tidepool::trainer
