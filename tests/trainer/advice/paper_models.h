// PaperModels: the models and machines of Mobius' evaluation (Feng et al., ASPLOS 2023, table 3 and
// section 4), as questions for the planner. What a block keeps and takes is near to what a profile
// finds; tests need no LibTorch for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/advice/pipeline_advice.h"

namespace tidepool::trainer {

// One row of table 3.
struct PaperModel {
  const char* name;
  uint32_t heads, hidden, layers;
  uint64_t sequences;  // of a micro-batch
};

inline constexpr PaperModel kPaperModels[] = {{"3b", 32, 2048, 64, 2},
                                              {"8b", 32, 4096, 40, 2},
                                              {"15b", 64, 5120, 40, 1},
                                              {"51b", 80, 9216, 50, 1}};

// As many micro-batches as GPUs, sequences of 512 tokens, in 16 bits. `gpus` under each root
// complex, which copies 13.1 GB/s; GPUs of 24 GiB that reach half of their 80 TFLOPS.
inline PipelineQuestion QuestionOf(const PaperModel& model, const std::vector<uint32_t>& gpus) {
  PipelineQuestion question;
  for (const uint32_t count : gpus) question.machine.topology.complexes.push_back({count, 13.1});
  question.machine.tflops = 40;
  question.machine.gpu_bytes = uint64_t{24} << 30;
  question.machine.origin = "the paper's first server";
  question.micro_batches = question.machine.topology.gpus();

  PipelineModel& asked = question.model;
  asked.shape = {model.name, 50257, 512, model.layers, model.heads, model.hidden};
  asked.dtype = DType::kBF16;
  asked.sequences = model.sequences;
  asked.tokens = 512;
  const uint64_t boundary = model.sequences * 512 * model.hidden * 2;
  asked.profile = {.boundary = boundary,
                   .kept = 17 * boundary,
                   .work = 30 * boundary,
                   .head_work = model.sequences * 512 * 50257 * 8};
  return question;
}

}  // namespace tidepool::trainer
