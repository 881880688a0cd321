#include "trainer/inputs/saved_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "base/planted.h"
#include "trainer/model/lora.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/tiles/linear_tiles.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kIndexFile = "/model.safetensors.index.json";
// Prefix of the names in files of GPT2LMHeadModel; files of GPT2Model lack it.
constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";
constexpr size_t kFingerprintBytes = 4096;  // per tensor
constexpr size_t kFingerprintDigits = 16;
constexpr uint64_t kTileElements = 64;  // side of a transposed tile

// Constants that older files hold beside the weights: masks and rotary frequencies.
bool IsNoWeight(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

std::vector<uint64_t> Reversed(std::vector<uint64_t> dims) {
  std::reverse(dims.begin(), dims.end());
  return dims;
}

}  // namespace

void TransposeMatrix(std::span<const float> in, uint64_t rows, uint64_t columns,
                     std::span<float> out) {
  for (uint64_t r0 = 0; r0 < rows; r0 += kTileElements) {
    for (uint64_t c0 = 0; c0 < columns; c0 += kTileElements) {
      const uint64_t r1 = std::min(rows, r0 + kTileElements);
      const uint64_t c1 = std::min(columns, c0 + kTileElements);
      for (uint64_t r = r0; r < r1; ++r)
        for (uint64_t c = c0; c < c1; ++c) out[c * rows + r] = in[r * columns + c];
    }
  }
}

Status CheckBaseIsThere(const std::string& base, const std::string& adapters) {
  std::error_code unknown;
  if (std::filesystem::exists(base, unknown)) return {};
  return Status(ErrorId::kFileUnreadable, "the base of the adapters is not at " + base)
      .Where(adapters)
      .Fix("say where it is now, with --base DIR");
}

Result<SavedModel> SavedModel::Open(const std::string& path, const std::string& base) {
  if (std::error_code unknown; !std::filesystem::exists(path, unknown)) {
    return Status(ErrorId::kFileUnreadable, "there is no " + path)
        .Where(path)
        .Fix(
            "give what `trainer run --save DIR` wrote, or a Hugging Face directory of a GPT-2 or a "
            "Llama");
  }

  SavedModel model(path);
  TP_ASSIGN_OR_RETURN(model.config_, ReadModelConfig(DirectoryOfWeights(path)));
  const LoraShape lora = std::exchange(model.config_.lora, {});
  if (!lora.on()) {
    TP_RETURN_IF_ERROR(model.OpenFiles(path));
    TP_RETURN_IF_ERROR(model.FindSources());
    return model;
  }

  const std::string place = base.empty() ? std::exchange(model.config_.base, {}) : base;
  TP_RETURN_IF_ERROR(CheckBaseIsThere(place, path));
  TP_ASSIGN_OR_RETURN(const ModelConfig of_base, ReadModelConfig(DirectoryOfWeights(place)));
  model.config_.names = of_base.names;
  TP_RETURN_IF_ERROR(model.OpenFiles(place));
  TP_RETURN_IF_ERROR(model.FindSources());
  TP_RETURN_IF_ERROR(model.OpenAdapters(lora));
  return model;
}

Status SavedModel::OpenFiles(const std::string& place) {
  const std::string directory = DirectoryOfWeights(place), whole = WholeModelAt(place);
  std::vector<std::string> paths{whole};
  if (!std::filesystem::exists(whole) && std::filesystem::exists(directory + kIndexFile)) {
    TP_ASSIGN_OR_RETURN(paths, ReadWeightIndex(directory + kIndexFile));
    for (std::string& file : paths) file = directory + "/" + file;
  }

  for (const std::string& file : paths) {
    TP_ASSIGN_OR_RETURN(WeightsFile opened, WeightsFile::Open(file));
    files_.push_back(std::make_unique<const WeightsFile>(std::move(opened)));
  }
  return {};
}

Status SavedModel::FindSources() {
  const bool prefixed =
      config_.names == WeightNames::kHuggingFace &&
      std::any_of(files_.begin(), files_.end(), [](const auto& file) {
        const auto& tensors = file->header().tensors;
        return std::any_of(tensors.begin(), tensors.end(),
                           [](const auto& tensor) { return tensor.name.starts_with(kPrefix); });
      });

  const std::string_view prefix = prefixed ? kPrefix : std::string_view();
  for (const ParameterNote& note : GptParameters(config_.shape))
    TP_RETURN_IF_ERROR(FindSource(note, prefix));
  return CheckRest(prefix);
}

Status SavedModel::FindSource(const ParameterNote& note, std::string_view prefix) {
  const std::string name = std::string(prefix) + note.name;
  Source source;
  source.transposed = config_.names == WeightNames::kHuggingFace && IsConv1D(note) &&
                      !TP_PLANTED("trainer.weights_not_transposed");
  for (; source.file < files_.size(); ++source.file) {
    if (files_[source.file]->Find(name) != nullptr) break;
  }

  for (const uint64_t dim : note.dims)
    source.elements = std::max<uint64_t>(1, source.elements) * dim;
  if (source.file == files_.size() && config_.names == WeightNames::kOurs) return FindTiles(note);
  if (source.file == files_.size()) return NotThere(name);
  TP_ASSIGN_OR_RETURN(
      source.tensor,
      files_[source.file]->Expect(name, source.transposed ? Reversed(note.dims) : note.dims));
  sources_.emplace(note.name, source);
  return {};
}

Status SavedModel::FindTiles(const ParameterNote& note) {
  Source source;
  const WeightsFile& file = *files_.front();
  uint64_t rows = 0;
  while (const SafetensorsEntry* tile = file.Find(TileName(note.name, source.tiles.size()))) {
    const uint64_t of_tile = tile->shape.empty() ? 0 : tile->shape.front();
    std::vector<uint64_t> dims = note.dims;
    dims.front() = of_tile;
    TP_RETURN_IF_ERROR(file.Expect(tile->name, dims).status());
    source.tiles.push_back(tile);
    rows += of_tile;
  }

  if (rows != note.dims.front()) return NotThere(note.name);
  source.tensor = source.tiles.front();
  for (const SafetensorsEntry* tile : source.tiles)
    source.elements += (tile->shape.front() * note.dims.back());
  sources_.emplace(note.name, std::move(source));
  return {};
}

Status SavedModel::NotThere(const std::string& name) const {
  return Status(ErrorId::kDataBad, "tensor " + name + " is in none of the files")
      .Where(files_.front()->path() +
             (files_.size() > 1 ? " and " + std::to_string(files_.size() - 1) + " more" : ""))
      .Why("config.json describes a model that has it")
      .Fix("give the weights of the model that config.json beside them describes");
}

Status SavedModel::CheckRest(std::string_view prefix) const {
  std::set<std::pair<size_t, std::string_view>> used;
  for (const auto& [name, source] : sources_) {
    used.emplace(source.file, source.tensor->name);
    for (const SafetensorsEntry* tile : source.tiles) used.emplace(source.file, tile->name);
  }

  for (size_t file = 0; file < files_.size(); ++file) {
    for (const SafetensorsEntry& tensor : files_[file]->header().tensors) {
      if (used.contains({file, tensor.name})) continue;
      const bool known = config_.names == WeightNames::kHuggingFace && IsNoWeight(tensor.name);
      // The head is the token embedding, if they are tied.
      const Source& table = sources_.at(TokenTableName(config_.shape));
      const bool head = config_.names == WeightNames::kHuggingFace && tensor.name == kHead &&
                        tensor.shape == table.tensor->shape;
      if (known || head) continue;

      return Status(ErrorId::kDataBad, "the model has no parameter " + tensor.name)
          .Where(files_[file]->path())
          .Why("config.json describes a model without it" +
               std::string(prefix.empty() ? "" : ", and all its parameters were found"))
          .Fix("give the weights of the model that config.json beside them describes");
    }
  }
  return {};
}

Status SavedModel::OpenAdapters(const LoraShape& lora) {
  const std::string file = DirectoryOfWeights(path_) + "/" + kAdapterFile;
  TP_ASSIGN_OR_RETURN(WeightsFile opened, WeightsFile::Open(file));
  adapter_file_ = std::make_unique<const WeightsFile>(std::move(opened));
  TP_RETURN_IF_ERROR(CheckTrainedOver(*adapter_file_, *files_.front()));
  adapter_scale_ = static_cast<float>(lora.scale());

  for (const ParameterNote& note : GptParameters(config_.shape, lora)) {
    if (note.frozen) continue;
    TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor,
                        adapter_file_->Expect(note.name, note.dims));
    constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
    const bool is_a = note.name.ends_with(kA);
    const std::string layer = note.name.substr(0, note.name.size() - (is_a ? kA : kB).size());
    Adapter& adapter = adapters_[layer + ".weight"];
    (is_a ? adapter.a : adapter.b) = tensor;
  }
  return {};
}

std::string SavedModel::Describe() const {
  std::set<std::string> types;
  for (const auto& [name, source] : sources_) types.insert(source.tensor->dtype);
  std::string text;
  for (const std::string& type : types) text += (text.empty() ? "" : " and ") + type;

  if (files_.size() > 1) text += ", " + std::to_string(files_.size()) + " files";
  if (config_.names == WeightNames::kHuggingFace)
    text +=
        std::string(", Hugging Face's ") + (HasExperts(config_.shape)                 ? "Mixtral"
                                            : config_.shape.form == ModelForm::kLlama ? "Llama"
                                                                                      : "GPT-2");
  if (adapter_file_ != nullptr) text += ", adapters merged into " + files_.front()->path();
  return text;
}

Status SavedModel::Read(const std::string& name, std::span<float> values) const {
  const Source& source = sources_.at(name);
  TP_RETURN_IF_ERROR(source.transposed ? ReadTransposed(source, values)
                                       : ReadStored(source, values));
  const auto adapter = adapters_.find(name);
  return adapter == adapters_.end() ? Status() : AddAdapter(adapter->second, values);
}

Status SavedModel::ReadFrom(const std::string& name, uint64_t begin,
                            std::span<float> values) const {
  const Source& source = sources_.at(name);
  if (begin == 0 && values.size() == source.elements) return Read(name, values);
  if (!source.transposed && source.tiles.empty() && !adapters_.contains(name))
    return files_[source.file]->Read(*source.tensor, begin, values);

  std::vector<float> whole(source.elements);
  TP_RETURN_IF_ERROR(Read(name, whole));
  std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(begin), values.size(), values.begin());
  return {};
}

Status SavedModel::ReadStored(const Source& source, std::span<float> values) const {
  const WeightsFile& file = *files_[source.file];
  if (source.tiles.empty()) return file.Read(*source.tensor, 0, values);
  for (const SafetensorsEntry* tile : source.tiles) {
    const uint64_t elements = tile->shape.front() * tile->shape.back();
    TP_RETURN_IF_ERROR(file.Read(*tile, 0, values.first(elements)));
    values = values.subspan(elements);
  }
  return {};
}

Status SavedModel::ReadTransposed(const Source& source, std::span<float> values) const {
  std::vector<float> stored(values.size());
  TP_RETURN_IF_ERROR(files_[source.file]->Read(*source.tensor, 0, stored));
  TransposeMatrix(stored, source.tensor->shape[0], source.tensor->shape[1], values);
  return {};
}

// W += alpha / rank * B A
Status SavedModel::AddAdapter(const Adapter& adapter, std::span<float> values) const {
  const uint64_t rank = adapter.a->shape[0], in = adapter.a->shape[1], out = adapter.b->shape[0];
  std::vector<float> a(rank * in), b(out * rank);
  TP_RETURN_IF_ERROR(adapter_file_->Read(*adapter.a, 0, a));
  TP_RETURN_IF_ERROR(adapter_file_->Read(*adapter.b, 0, b));

  for (uint64_t o = 0; o < out; ++o) {
    float* row = values.data() + o * in;
    for (uint64_t k = 0; k < rank; ++k) {
      const float factor = adapter_scale_ * b[o * rank + k];
      for (uint64_t i = 0; i < in; ++i) row[i] += factor * a[k * in + i];
    }
  }
  return {};
}

Result<std::string> SavedModel::Fingerprint() const {
  ContentHasher hasher;
  std::array<std::byte, kFingerprintBytes> bytes{};
  const auto add = [&](const WeightsFile& file, const SafetensorsEntry& tensor) -> Status {
    const auto begin =
        std::span(bytes).first(std::min<uint64_t>(bytes.size(), tensor.end - tensor.begin));
    TP_RETURN_IF_ERROR(file.ReadRaw(tensor, begin));
    hasher.Update(begin);
    return {};
  };

  for (const ParameterNote& note : GptParameters(config_.shape)) {
    const Source& source = sources_.at(note.name);
    TP_RETURN_IF_ERROR(add(*files_[source.file], *source.tensor));
  }
  if (adapter_file_ != nullptr) {
    for (const SafetensorsEntry& tensor : adapter_file_->header().tensors)
      TP_RETURN_IF_ERROR(add(*adapter_file_, tensor));
  }
  return HexOf(hasher.Finish()).substr(0, kFingerprintDigits);
}

}  // namespace tidepool::trainer
