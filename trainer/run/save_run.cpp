#include "trainer/run/save_run.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/unique_fd.h"
#include "trainer/data/tokenizer_file.h"
#include "trainer/inputs/model_config.h"
#include "trainer/inputs/weights_file.h"

namespace tidepool::trainer {
namespace {

// The server has written the trained tensors; it does not know the base file.
Status SaveConfig(const SaveTask& task) {
  const RunPlan& plan = task.plan;
  ModelConfig config{
      .shape = plan.shape, .bytes = plan.shape.vocab == kByteVocab, .lora = plan.lora, .base = {}};
  if (plan.lora.on()) {
    config.base = std::filesystem::absolute(plan.base->file().path());
    TP_RETURN_IF_ERROR(AddMetadata(task.directory + "/" + kAdapterFile,
                                   {{kBaseHashKey, task.base_names->FileOrNothing()}}));
    task.base_names->Remember();
  }
  return WriteModelConfig(task.directory, config);
}

}  // namespace

Result<std::string> SaveRun(const SaveTask& task) {
  const UniqueFd directory(open(task.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid())
    return Status(ErrorId::kSaveFailed,
                  "cannot open the directory " + task.directory + ": " + std::strerror(errno));

  const std::string file = task.plan.lora.on() ? kAdapterFile : kWeightsFile;
  TP_RETURN_IF_ERROR(task.service->SaveWeights(directory.get(), file, task.version));
  TP_RETURN_IF_ERROR(SaveConfig(task));
  TP_RETURN_IF_ERROR(CopyTokenizer(task.tokenizer, task.directory));
  return file;
}

}  // namespace tidepool::trainer
