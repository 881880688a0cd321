// SavedModel: a run's initial weights, with the names and shapes of our GPT: from the output of
// `trainer run --save`, from a Hugging Face directory of a GPT-2 or a Llama, or from adapters,
// which are merged into their base.
//
// One thread at a time. Open reads only headers and finds a source for each parameter; values are
// read on demand, one parameter after another, so that no rank ever holds the model. Hugging Face
// stores the weights of GPT-2's linear layers as [in][out] (Conv1D), this project as [out][in].
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

// Checks that the base of the adapters at `adapters` exists. Error: kFileUnreadable, whose fix is
// --base.
Status CheckBaseIsThere(const std::string& base, const std::string& adapters);

class SavedModel {
 public:
  // `path`: the directory, or a file in it. `base`: of adapters, if their base has moved; else
  // empty. The weights are in model.safetensors, or in the files named by
  // model.safetensors.index.json. Errors: those of ReadModelConfig, ReadWeightIndex and
  // WeightsFile::Open; kDataBad (a tensor that is missing, that the model does not have, or has
  // another shape or type; adapters of another base).
  static Result<SavedModel> Open(const std::string& path, const std::string& base = "");

  const std::string& path() const { return path_; }
  // Shape and tokens; never of adapters.
  const ModelConfig& config() const { return config_; }
  // "fp32, 12 files".
  std::string Describe() const;

  // Reads all values of the parameter `name` of GptParameters(config().shape), row-major. Errors:
  // kSafetensorsBad (a file has changed or cannot be read).
  Status Read(const std::string& name, std::span<float> values) const;
  // The same for values.size() elements from `begin` on.
  Status ReadFrom(const std::string& name, uint64_t begin, std::span<float> values) const;
  // Distinguishes these weights from others of the same shape by 4 KiB of each tensor: 16 hex
  // digits. Errors: kSafetensorsBad.
  Result<std::string> Fingerprint() const;

 private:
  struct Source {
    size_t file = 0;  // index in files_
    const SafetensorsEntry* tensor = nullptr;
    bool transposed = false;
    uint64_t elements = 0;
    // All tiles of a layer that a run with --tile-linear saved, `tensor` the first; else empty.
    std::vector<const SafetensorsEntry*> tiles = {};
  };
  // A and B for one linear layer.
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
  // Finds a parameter that is there in tiles.
  Status FindTiles(const ParameterNote& note);
  Status NotThere(const std::string& name) const;
  Status ReadStored(const Source& source, std::span<float> values) const;
  Status ReadTransposed(const Source& source, std::span<float> values) const;
  Status AddAdapter(const Adapter& adapter, std::span<float> values) const;

  std::string path_;
  ModelConfig config_;
  std::vector<std::unique_ptr<const WeightsFile>> files_;
  std::unordered_map<std::string, Source> sources_;  // by parameter name
  // Set if the path holds adapters.
  std::unique_ptr<const WeightsFile> adapter_file_;
  float adapter_scale_ = 0;
  std::unordered_map<std::string, Adapter> adapters_;  // by weight name
};

// out[c][r] = in[r][c], tile by tile, so that both sides stay in the CPU's cache. Any thread.
void TransposeMatrix(std::span<const float> in, uint64_t rows, uint64_t columns,
                     std::span<float> out);

}  // namespace tidepool::trainer
