#include "trainer/inputs/model_config.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include <boost/json.hpp>

#include "base/text/json_writer.h"
#include "base/system/whole_file.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kFile = "/config.json";

// A whole number in [1, max] under `key`; 0 when it is missing or anything else.
uint32_t NumberIn(const boost::json::object& object, const char* key, int64_t max) {
  const boost::json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_int64()) return 0;
  const int64_t number = value->get_int64();
  return number >= 1 && number <= max ? static_cast<uint32_t>(number) : 0;
}

std::string TextIn(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// Adapters, where the keys say so.
Status ReadLora(const boost::json::object& object, ModelConfig* config) {
  if (!object.contains("tidepool_lora_rank")) return {};
  const boost::json::value* alpha = object.if_contains("tidepool_lora_alpha");
  boost::json::error_code error;
  const auto factor = alpha != nullptr ? alpha->to_number<double>(error) : 0;
  const uint32_t rank = NumberIn(object, "tidepool_lora_rank", 1 << 20);
  TP_ASSIGN_OR_RETURN(config->lora,
                      MakeLoraShape(config->shape, rank, error ? 0 : static_cast<float>(factor),
                                    TextIn(object, "tidepool_lora_targets")));
  config->base = TextIn(object, "tidepool_base");
  return {};
}

Status NotUsable(const std::string& path, const std::string& why) {
  return Status(ErrorId::kDataBad, path + ": " + why)
      .Where(path)
      .Fix("give what `trainer run --save DIR` wrote, or a Hugging Face directory of a GPT-2");
}

// The JSON object in a file.
Result<boost::json::object> ReadObject(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return Status(ErrorId::kFileUnreadable, "cannot read " + path)
        .Where(path)
        .Why(std::strerror(errno))
        .Fix("give a directory that `trainer run --save DIR` wrote");

  std::stringstream text;
  text << file.rdbuf();
  boost::json::error_code error;
  boost::json::value parsed = boost::json::parse(text.str(), error);
  if (error || !parsed.is_object()) return NotUsable(path, "it is not a JSON object");
  return std::move(parsed).as_object();
}

// A value that the model has to have where the key is there at all, as Hugging Face's GPT-2 reads
// it.
struct Required {
  const char* key;
  boost::json::value value;
};

// What of a configuration our GPT does not compute; empty: nothing.
std::string OtherModel(const boost::json::object& object, const GptShape& shape) {
  const std::string type = TextIn(object, "model_type");
  if (!type.empty() && type != "gpt2")
    return "it describes a model of type " + type +
           ", and `trainer` has GPT-2 alone; train it from Python (docs/python.md)";

  const std::string gelu = TextIn(object, "activation_function");
  if (!gelu.empty() && gelu != "gelu_new" && gelu != "gelu_pytorch_tanh")
    return "its activation_function is " + gelu + ", and `trainer` computes gelu_new";

  const Required required[] = {{"tie_word_embeddings", true},
                               {"scale_attn_weights", true},
                               {"scale_attn_by_inverse_layer_idx", false},
                               {"add_cross_attention", false},
                               {"n_inner", int64_t{4} * shape.hidden},
                               {"layer_norm_epsilon", kGptNormEpsilon}};

  for (const Required& one : required) {
    const boost::json::value* value = object.if_contains(one.key);
    if (value == nullptr || value->is_null() || *value == one.value) continue;
    return std::string("its ") + one.key + " is " + boost::json::serialize(*value) +
           ", and `trainer` computes " + boost::json::serialize(one.value);
  }
  return {};
}

}  // namespace

Status WriteModelConfig(const std::string& directory, const ModelConfig& config) {
  JsonWriter json;
  json.BeginObject()
      .Field("model_type", "gpt2")
      .Field("activation_function", "gelu_new")
      .Field("tidepool_preset", config.shape.name);
  json.Field("tidepool_tokens", config.bytes ? "bytes" : "ids");
  json.Field("vocab_size", config.shape.vocab)
      .Field("n_positions", config.shape.context)
      .Field("n_layer", config.shape.layers);
  json.Field("n_head", config.shape.heads).Field("n_embd", config.shape.hidden);

  if (config.lora.on()) {
    json.Field("tidepool_lora_rank", config.lora.rank)
        .Field("tidepool_lora_alpha", config.lora.alpha);
    json.Field("tidepool_lora_targets", TargetsText(config.lora))
        .Field("tidepool_base", config.base);
  }

  json.EndObject();
  return WriteWholeFile(directory + kFile, json.text() + "\n");
}

Status WriteHuggingFaceConfig(const std::string& directory, const ModelConfig& config,
                              DType dtype) {
  constexpr uint32_t kGpt2Vocab = 50257, kGpt2End = 50256;  // its last token ends a text
  JsonWriter json;
  json.BeginObject().Key("architectures").BeginArray().String("GPT2LMHeadModel").EndArray();
  json.Field("model_type", "gpt2").Field("activation_function", "gelu_new");
  json.Field("vocab_size", config.shape.vocab)
      .Field("n_positions", config.shape.context)
      .Field("n_layer", config.shape.layers);
  json.Field("n_head", config.shape.heads).Field("n_embd", config.shape.hidden);

  json.Field("layer_norm_epsilon", kGptNormEpsilon).Field("tie_word_embeddings", true);
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (config.shape.vocab == kGpt2Vocab) json.Field(key, kGpt2End);
    if (config.shape.vocab != kGpt2Vocab) json.Key(key).Null();
  }
  json.Field("torch_dtype", dtype == DType::kF32    ? "float32"
                            : dtype == DType::kBF16 ? "bfloat16"
                                                    : "float16");
  json.EndObject();
  return WriteWholeFile(directory + kFile, json.text() + "\n");
}

Result<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::string path = directory + kFile;
  TP_ASSIGN_OR_RETURN(const boost::json::object object, ReadObject(path));

  ModelConfig config;
  config.shape.name = TextIn(object, "tidepool_preset");
  if (config.shape.name.empty()) config.shape.name = "saved";
  config.shape.vocab = NumberIn(object, "vocab_size", 1 << 24);
  config.shape.context = NumberIn(object, "n_positions", 1 << 24);
  config.shape.layers = NumberIn(object, "n_layer", 1 << 16);
  config.shape.heads = NumberIn(object, "n_head", 1 << 16);
  config.shape.hidden = NumberIn(object, "n_embd", 1 << 20);
  const std::string tokens = TextIn(object, "tidepool_tokens");
  config.bytes = tokens == "bytes";
  config.names = tokens.empty() ? WeightNames::kHuggingFace : WeightNames::kOurs;

  const std::string other = OtherModel(object, config.shape);
  if (!other.empty()) return NotUsable(path, other);
  Status usable = CheckGptShape(config.shape);
  if (usable.ok()) usable = ReadLora(object, &config);
  if (!usable.ok()) return NotUsable(path, usable.what());
  return config;
}

Result<std::vector<std::string>> ReadWeightIndex(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const boost::json::object object, ReadObject(path));
  const boost::json::value* map = object.if_contains("weight_map");
  if (map == nullptr || !map->is_object() || map->get_object().empty())
    return NotUsable(path, "it has no weight_map");

  std::set<std::string> files;
  for (const auto& [tensor, file] : map->get_object()) {
    const std::string name = file.is_string() ? std::string(file.get_string()) : std::string();
    if (name.empty() || name.find('/') != std::string::npos)
      return NotUsable(path, "the file of tensor " + std::string(tensor) + " is no plain name");
    files.insert(name);
  }
  return std::vector<std::string>(files.begin(), files.end());
}

}  // namespace tidepool::trainer
