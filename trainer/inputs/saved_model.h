// SavedModel: the weights that a run begins with, by the names and in the shapes of our GPT: from
// what `trainer run --save` wrote, from a Hugging Face directory of a GPT-2 or a Llama, or from
// adapters, which are merged into their base.
//
// One thread at a time. Open reads headers alone and finds a source for each parameter; values are
// read when they are asked for, one parameter after the other, so that no rank ever holds the
// model. Hugging Face keeps the weights of GPT-2's linear layers as [in][out] (Conv1D), we as
// [out][in].
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "trainer/inputs/model_config.h"
#include "trainer/inputs/weights_file.h"

namespace tidepool::trainer {

class SavedModel {
 public:
  // `path`: the directory, or a file in it. `base`: of adapters, where their base no longer lies
  // where they say; else empty. The weights are in model.safetensors, or in the files that
  // model.safetensors.index.json names.
  // Errors: those of ReadModelConfig, ReadWeightIndex and WeightsFile::Open; kDataBad (a tensor
  // that is missing, that the model does not have, or of another shape or type; adapters of another
  // base).
  static Result<SavedModel> Open(const std::string& path, const std::string& base = "");

  const std::string& path() const { return path_; }
  // Shape and tokens; never adapters.
  const ModelConfig& config() const { return config_; }
  // "fp32, 12 files", for people.
  std::string Describe() const;

  // All values of the parameter `name` of GptParameters(config().shape), row-major. Errors:
  // kSafetensorsBad (a file was changed or cannot be read).
  Status Read(const std::string& name, std::span<float> values) const;
  // Tells these weights from others of the same shape, for 4 KiB of each tensor read: 16 hex
  // digits. Errors: kSafetensorsBad.
  Result<std::string> Fingerprint() const;

 private:
  struct Source {
    size_t file = 0;  // in files_
    const SafetensorsEntry* tensor = nullptr;
    bool transposed = false;
  };
  // A and B beside one linear layer.
  struct Adapter {
    const SafetensorsEntry* a = nullptr;
    const SafetensorsEntry* b = nullptr;
  };

  explicit SavedModel(std::string path) : path_(std::move(path)) {}
  Status OpenFiles(const std::string& place);
  Status OpenAdapters(const LoraShape& lora);
  Status FindSources();
  Status FindSource(const ParameterNote& note, std::string_view prefix);
  Status CheckRest(std::string_view prefix) const;
  Status NotThere(const std::string& name) const;
  Status ReadTransposed(const Source& source, std::span<float> values) const;
  Status AddAdapter(const Adapter& adapter, std::span<float> values) const;

  std::string path_;
  ModelConfig config_;
  std::vector<std::unique_ptr<const WeightsFile>> files_;
  std::unordered_map<std::string, Source> sources_;  // by name of the parameter
  // Where the path holds adapters.
  std::unique_ptr<const WeightsFile> adapter_file_;
  float adapter_scale_ = 0;
  std::unordered_map<std::string, Adapter> adapters_;  // by name of the weight
};

// out[c][r] = in[r][c], tile by tile, so that both sides stay in the CPU's cache. Any thread.
void TransposeMatrix(std::span<const float> in, uint64_t rows, uint64_t columns,
                     std::span<float> out);

}  // namespace tidepool::trainer
