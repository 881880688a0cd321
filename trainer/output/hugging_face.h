// WriteHuggingFace: a saved model as a directory that transformers, and what reads its files, loads
// as a GPT2LMHeadModel, a LlamaForCausalLM or, with experts, a MixtralForCausalLM.
//
// One thread. Values go from the source to the file one parameter after the other; the process
// never holds the model.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/inputs/saved_model.h"

namespace tidepool::trainer {

// Writes model.safetensors in `dtype` (rounded to nearest even where that is smaller than the
// source) and config.json into `directory`, which is made where it is not there. Files of these
// names are replaced when the new ones are complete, the weights first. The tokenizer's files
// beside the source, if any, are copied.
// Errors: kUsageError (the directory is that of the source; experts in some blocks alone),
// kFileWriteFailed, kSafetensorsBad (the source was changed or cannot be read).
Status WriteHuggingFace(const SavedModel& model, const std::string& directory, DType dtype);

}  // namespace tidepool::trainer
