// WriteHuggingFace: exports a saved model as a directory that transformers, and readers of its
// files, load as a GPT2LMHeadModel, a LlamaForCausalLM or, with experts, a MixtralForCausalLM.
//
// One thread. Values go from the source to the file parameter by parameter; the process never holds
// the whole model.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/inputs/saved_model.h"

namespace tidepool::trainer {

// Writes model.safetensors in `dtype` (rounded to nearest even if narrower than the source) and
// config.json into `directory`, which is created if missing. Replaces files of these names once the
// new ones are complete, the weights first. Copies the tokenizer's files beside the source, if any.
// Errors: kUsageError (the directory is that of the source; experts in some blocks only),
// kFileWriteFailed, kSafetensorsBad (the source has changed or cannot be read).
Status WriteHuggingFace(const SavedModel& model, const std::string& directory, DType dtype);

}  // namespace tidepool::trainer
