// SaveRun: the weights of a run after its last step, or its adapters, with what a reader needs
// beside them.
//
// One thread (the trainer's main thread), rank 0. memserver writes the tensors; the trainer adds
// config.json and the tokenizer's files, and names the base in the file of adapters.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/inputs/base_names.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// What is saved, and where.
struct SaveTask {
  std::string directory;  // is there
  const RunPlan& plan;
  client::ChunkService* service = nullptr;
  Version version = 0;              // sealed; its weights are saved
  BaseNames* base_names = nullptr;  // where adapters are trained, else null
  std::string tokenizer = {};       // directory of the one that text was read with; empty: none
};

// The name of the file in the directory. Errors: kSaveFailed, kFileWriteFailed, those of
// ChunkService::SaveWeights and AddMetadata.
Result<std::string> SaveRun(const SaveTask& task);

}  // namespace tidepool::trainer
