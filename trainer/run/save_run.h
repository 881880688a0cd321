// SaveRun: saves a run's weights, or its adapters, after the last step, with the files that a
// reader needs.
//
// One thread (the trainer's main thread), rank 0. memserver writes the tensors; the trainer adds
// config.json and the tokenizer's files, and names the base in an adapter file.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/inputs/base_names.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// What to save, and where.
struct SaveTask {
  std::string directory;  // exists
  const RunPlan& plan;
  client::ChunkService* service = nullptr;
  Version version = 0;              // the sealed version to save
  BaseNames* base_names = nullptr;  // when adapters are trained, else null
  std::string tokenizer = {};       // directory of the text tokenizer; empty: none
};

// Returns the file's name in the directory. Errors: kSaveFailed, kFileWriteFailed, those of
// ChunkService::SaveWeights and AddMetadata.
Result<std::string> SaveRun(const SaveTask& task);

}  // namespace tidepool::trainer
