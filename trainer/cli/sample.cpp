// `trainer sample DIR PROMPT` and `trainer version`: what runs LibTorch without training.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <torch/version.h>

#include "base/clock.h"
#include "client/protocol.h"
#include "trainer/comm/nccl/nccl_version.h"
#include "trainer/threads/compute_threads.h"
#include "trainer/threads/cpu_watch.h"
#include "trainer/model/generate.h"
#include "trainer/inputs/model_config.h"
#include "trainer/cli/run.h"
#include "trainer/inputs/weights_file.h"

namespace tidepool::trainer {
namespace {

// All tensors of the file become the model's parameters of these names.
Status LoadInto(Gpt* model, const WeightsFile& file, const std::vector<ParameterNote>& notes) {
  auto parameters = model->named_parameters();
  for (const ParameterNote& note : notes) {
    TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor, file.Expect(note.name, note.dims));
    at::Tensor& parameter = parameters[note.name];
    TP_RETURN_IF_ERROR(file.Read(
        *tensor, 0, {parameter.mutable_data_ptr<float>(), static_cast<size_t>(parameter.numel())}));
  }

  if (file.header().tensors.size() == notes.size()) return {};
  return Status(ErrorId::kDataBad, "the file has " + std::to_string(file.header().tensors.size()) +
                                       " tensors, the model of config.json " +
                                       std::to_string(notes.size()))
      .Where(file.path())
      .Fix("give a directory that `trainer run --save DIR` wrote");
}

// The adapters say over which bytes they were trained; over others they are of no use.
Status CheckBase(const WeightsFile& adapters, const WeightsFile& base) {
  const std::string trained_over = adapters.Metadata(kBaseHashKey);
  TP_ASSIGN_OR_RETURN(const ContentHash hash, base.HashFile());
  if (HexOf(hash) == trained_over) return {};
  return Status(ErrorId::kDataBad, "these adapters were trained over another base")
      .Where(base.path())
      .Why("its bytes have the hash " + HexOf(hash) + " (`b2sum -l 256`); " + adapters.path() +
           " names " + (trained_over.empty() ? std::string("none") : trained_over))
      .Fix("give the base that they were trained over, with --base");
}

Status LoadModel(Gpt* model, const ModelConfig& config, const RunOptions& options) {
  std::vector<ParameterNote> own, adapters;
  for (ParameterNote& note : GptParameters(config.shape, config.lora)) {
    (config.lora.on() && !note.frozen ? adapters : own).push_back(std::move(note));
  }

  const std::string place = !config.lora.on()               ? options.sample.weights_dir
                            : options.adapters.base.empty() ? config.base
                                                            : options.adapters.base;
  TP_ASSIGN_OR_RETURN(const WeightsFile file, WeightsFile::Open(WholeModelAt(place)));

  if (config.lora.on()) {
    TP_ASSIGN_OR_RETURN(const WeightsFile trained,
                        WeightsFile::Open(options.sample.weights_dir + "/" + kAdapterFile));
    TP_RETURN_IF_ERROR(CheckBase(trained, file));
    TP_RETURN_IF_ERROR(LoadInto(model, trained, adapters));
  }
  return LoadInto(model, file, own);
}

Status Sample(const RunOptions& options) {
  const SteadyClock clock;
  const auto cpus = CpuWatch::Start(UseThreads(options.device.threads, 1), &clock);
  TP_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.sample.weights_dir));
  if (!config.bytes) {
    return Status(ErrorId::kUsageError, "the model of " + options.sample.weights_dir +
                                            " was trained on token ids, not on text")
        .Why("a prompt can be given as text only to models whose tokens are bytes")
        .Fix("train on text files, or use the weights with a tool that has the tokenizer");
  }

  Gpt model(config.shape, torch::TensorOptions().dtype(torch::kFloat32), config.lora);
  TP_RETURN_IF_ERROR(LoadModel(&model, config, options));
  std::vector<int64_t> prompt;
  for (const char c : options.sample.prompt) prompt.push_back(static_cast<uint8_t>(c));

  GenerateOptions generate;
  generate.tokens = options.sample.tokens;
  generate.temperature = options.sample.temperature;
  generate.top_k = options.sample.top_k;
  generate.seed = options.model.seed;
  TP_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, Generate(&model, prompt, generate));

  std::string text = options.sample.prompt;
  for (const int64_t token : tokens) text.push_back(static_cast<char>(token));
  std::cout << text << "\n";
  return {};
}

}  // namespace

int RunSample(const RunOptions& options) {
  const Status status = Sample(options);
  if (status.ok()) return kExitOk;
  std::cerr << status.Format() << "\n";
  return status.exit_code();
}

int RunVersion() {
  std::cout << "trainer " << TIDEPOOL_VERSION << ", protocol " << client::Protocol()
            << ", LibTorch " << TORCH_VERSION << ", NCCL " << NcclVersion() << "\n";
  return kExitOk;
}

}  // namespace tidepool::trainer
