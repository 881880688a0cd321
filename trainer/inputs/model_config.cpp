#include "trainer/inputs/model_config.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include <boost/json.hpp>

#include "base/text/json_writer.h"
#include "base/system/whole_file.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/moe_text.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kFile = "/config.json";
// Values of model_type: with experts in every block, and in some blocks.
constexpr const char* kMixtral = "mixtral";
constexpr const char* kOursWithExperts = "tidepool_moe";
constexpr const char* kMoeLayers = "tidepool_moe_layers";  // where blocks have other experts each

// A whole number in [1, max] under `key`; 0 if it is missing or invalid.
uint32_t NumberIn(const boost::json::object& object, const char* key, int64_t max) {
  const boost::json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_int64()) return 0;
  const int64_t number = value->get_int64();
  return number >= 1 && number <= max ? static_cast<uint32_t>(number) : 0;
}

// The number under `key`; `missing` if absent or null, NaN if it is not a number.
double RealIn(const boost::json::object& object, const char* key, double missing) {
  const boost::json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return missing;
  boost::json::error_code error;
  const auto number = value->to_number<double>(error);
  return error ? std::nan("") : number;
}

std::string TextIn(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// Reads the description of adapters, if there is one.
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
      .Fix(
          "give what `trainer run --save DIR` wrote, or a Hugging Face directory of a GPT-2 or a "
          "Llama");
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

// A key whose value, if present, must be the one that our model computes, as in Hugging Face's
// GPT-2.
struct Required {
  const char* key;
  boost::json::value value;
};

// The first key with another value than required; empty: none.
std::string OtherValue(const boost::json::object& object, std::span<const Required> required) {
  for (const Required& one : required) {
    const boost::json::value* value = object.if_contains(one.key);
    if (value == nullptr || value->is_null() || *value == one.value) continue;
    return std::string("its ") + one.key + " is " + boost::json::serialize(*value) +
           ", and `trainer` computes " + boost::json::serialize(one.value);
  }
  return {};
}

// The first setting of a GPT-2 configuration that our GPT does not compute; empty: none.
std::string OtherGpt2(const boost::json::object& object, const GptShape& shape) {
  const std::string gelu = TextIn(object, "activation_function");
  if (!gelu.empty() && gelu != "gelu_new" && gelu != "gelu_pytorch_tanh")
    return "its activation_function is " + gelu + ", and `trainer` computes gelu_new";

  const Required required[] = {{"tie_word_embeddings", true},
                               {"scale_attn_weights", true},
                               {"scale_attn_by_inverse_layer_idx", false},
                               {"add_cross_attention", false},
                               {"n_inner", int64_t{4} * shape.hidden},
                               {"layer_norm_epsilon", kGptNormEpsilon}};
  return OtherValue(object, required);
}

// The same for a Llama.
std::string OtherLlama(const boost::json::object& object) {
  const Required required[] = {
      {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}};
  return OtherValue(object, required);
}

// Releases of transformers have rotary positions at the top level, in rope_scaling, or in
// rope_parameters. Returns what is present but not supported; empty: nothing.
std::string ReadRotary(const boost::json::object& object, LlamaSizes* sizes) {
  sizes->rotary_base = RealIn(object, "rope_theta", sizes->rotary_base);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const boost::json::value* value = object.if_contains(key);
    if (value == nullptr || !value->is_object()) continue;
    const boost::json::object& rope = value->get_object();
    sizes->rotary_base = RealIn(rope, "rope_theta", sizes->rotary_base);

    const std::string type = TextIn(rope, rope.contains("rope_type") ? "rope_type" : "type");
    if (type.empty() || type == "default") continue;
    if (type != "llama3")
      return "its rotary positions are of type " + type +
             ", and `trainer` computes default and llama3";
    sizes->stretch.factor = RealIn(rope, "factor", 0);
    sizes->stretch.low = RealIn(rope, "low_freq_factor", 1);
    sizes->stretch.high = RealIn(rope, "high_freq_factor", 4);
    sizes->stretch.first_context = NumberIn(rope, "original_max_position_embeddings", 1 << 24);
  }
  return {};
}

// Returns the error, or "".
std::string ReadGpt2(const boost::json::object& object, GptShape* shape) {
  shape->context = NumberIn(object, "n_positions", 1 << 24);
  shape->layers = NumberIn(object, "n_layer", 1 << 16);
  shape->heads = NumberIn(object, "n_head", 1 << 16);
  shape->hidden = NumberIn(object, "n_embd", 1 << 20);
  return OtherGpt2(object, *shape);
}

std::string ReadLlama(const boost::json::object& object, GptShape* shape) {
  shape->form = ModelForm::kLlama;
  shape->context = NumberIn(object, "max_position_embeddings", 1 << 24);
  shape->layers = NumberIn(object, "num_hidden_layers", 1 << 16);
  shape->heads = NumberIn(object, "num_attention_heads", 1 << 16);
  shape->hidden = NumberIn(object, "hidden_size", 1 << 20);

  const auto is_there = [&object](const char* key) {
    const boost::json::value* value = object.if_contains(key);
    return value != nullptr && !value->is_null();
  };
  LlamaSizes* const sizes = &shape->llama;
  sizes->kv_heads = is_there("num_key_value_heads")
                        ? NumberIn(object, "num_key_value_heads", 1 << 16)
                        : shape->heads;
  sizes->head_size = is_there("head_dim") ? NumberIn(object, "head_dim", 1 << 16)
                                          : shape->hidden / std::max(1U, shape->heads);
  sizes->mlp = NumberIn(object, "intermediate_size", 1 << 24);

  // Defaults are those of transformers' LlamaConfig.
  const boost::json::value* tied = object.if_contains("tie_word_embeddings");
  sizes->tied = tied != nullptr && tied->is_bool() && tied->get_bool();
  sizes->norm_epsilon = RealIn(object, "rms_norm_eps", 1e-6);
  const std::string rotary = ReadRotary(object, sizes);
  return rotary.empty() ? OtherLlama(object) : rotary;
}

// The experts of each block, in the words of MoeWords. Returns the error, or "".
std::string ReadMoeLayers(const boost::json::object& object, GptShape* shape) {
  const boost::json::value& layers = object.at(kMoeLayers);
  if (!layers.is_array() || layers.get_array().size() != shape->layers)
    return std::string(kMoeLayers) + " is no list with an entry for each block";

  for (const boost::json::value& words : layers.get_array()) {
    MoeSizes& block = shape->moe_layers.emplace_back();
    if (!words.is_string()) return std::string(kMoeLayers) + " has an entry that is no text";
    if (words.get_string().empty()) continue;
    Result<MoeSizes> read = ReadMoe(std::string(words.get_string()), {});
    if (!read.ok()) return std::string(kMoeLayers) + ": " + read.status().what();
    block = *read;
  }
  return HasExperts(*shape) ? "" : "it does not say how many experts there are";
}

// A Llama with experts: Mixtral (experts in every block), or a model of ours with other settings.
std::string ReadMoeOf(const boost::json::object& object, GptShape* shape) {
  std::string other = ReadLlama(object, shape);
  MoeSizes* const moe = &shape->moe;
  if (object.contains(kMoeLayers)) return other.empty() ? ReadMoeLayers(object, shape) : other;
  const bool is_mixtral = TextIn(object, "model_type") == kMixtral;
  const boost::json::value* residual = object.if_contains("tidepool_moe_residual");
  moe->residual = residual != nullptr && residual->is_bool() && residual->get_bool();
  moe->every = is_mixtral ? 1 : NumberIn(object, "tidepool_moe_every", 1 << 16);
  moe->experts = NumberIn(object, "num_local_experts", 1 << 12);
  moe->top_k = NumberIn(object, "num_experts_per_tok", 1 << 12);
  moe->width = is_mixtral ? shape->llama.mlp : NumberIn(object, "tidepool_moe_width", 1 << 24);

  // Defaults are those of transformers' MixtralConfig.
  moe->aux = static_cast<float>(RealIn(object, "router_aux_loss_coef", 0.001));
  moe->z = static_cast<float>(RealIn(object, "tidepool_moe_z", 0));
  moe->capacity = static_cast<float>(RealIn(object, "tidepool_moe_capacity", 0));
  if (!other.empty()) return other;
  if (moe->every == 0 || moe->experts == 0) return "it does not say how many experts there are";

  const Required required[] = {{"router_jitter_noise", 0.0}};
  other = OtherValue(object, required);
  const boost::json::value* window = object.if_contains("sliding_window");
  if (window != nullptr && window->is_int64() && window->get_int64() < shape->context)
    return "its sliding_window is shorter than its context, and `trainer` attends to all of it";
  return other;
}

const char* NameOfTorch(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kBF16 ? "bfloat16" : "float16";
}

void WriteGpt2(const GptShape& shape, JsonWriter* json) {
  json->Field("model_type", "gpt2").Field("activation_function", "gelu_new");
  json->Field("vocab_size", shape.vocab)
      .Field("n_positions", shape.context)
      .Field("n_layer", shape.layers);
  json->Field("n_head", shape.heads).Field("n_embd", shape.hidden);
}

void WriteMoe(const GptShape& shape, JsonWriter* json) {
  if (!shape.moe_layers.empty()) {
    json->Key(kMoeLayers).BeginArray();
    for (const MoeSizes& block : shape.moe_layers) json->String(MoeWords(block));
    json->EndArray();
    return;
  }

  const MoeSizes& moe = shape.moe;
  if (moe.residual) json->Field("tidepool_moe_residual", true);
  json->Field("num_local_experts", moe.experts).Field("num_experts_per_tok", moe.top_k);
  json->Field("router_aux_loss_coef", moe.aux).Key("sliding_window").Null();
  json->Field("tidepool_moe_every", moe.every).Field("tidepool_moe_width", moe.width);
  json->Field("tidepool_moe_capacity", moe.capacity).Field("tidepool_moe_z", moe.z);
}

void WriteLlama(const GptShape& shape, JsonWriter* json) {
  const LlamaSizes& sizes = shape.llama;
  const bool is_mixtral = IsMixtral(shape);
  json->Field("model_type", is_mixtral          ? kMixtral
                            : HasExperts(shape) ? kOursWithExperts
                                                : "llama")
      .Field("hidden_act", "silu");

  json->Field("vocab_size", shape.vocab)
      .Field("max_position_embeddings", shape.context)
      .Field("num_hidden_layers", shape.layers)
      .Field("num_attention_heads", shape.heads)
      .Field("num_key_value_heads", sizes.kv_heads);

  json->Field("head_dim", sizes.head_size)
      .Field("hidden_size", shape.hidden)
      .Field("intermediate_size", is_mixtral ? shape.moe.width : sizes.mlp);

  json->Field("rms_norm_eps", sizes.norm_epsilon)
      .Field("tie_word_embeddings", sizes.tied)
      .Field("attention_bias", false)
      .Field("mlp_bias", false);

  if (HasExperts(shape)) WriteMoe(shape, json);

  // transformers before 5 reads rope_theta and rope_scaling, later releases read these as well.
  json->Field("rope_theta", sizes.rotary_base);
  if (sizes.stretch.factor <= 0) return;
  json->Key("rope_scaling").BeginObject().Field("rope_type", "llama3");
  json->Field("factor", sizes.stretch.factor)
      .Field("low_freq_factor", sizes.stretch.low)
      .Field("high_freq_factor", sizes.stretch.high)
      .Field("original_max_position_embeddings", sizes.stretch.first_context);
  json->EndObject();
}

const char* ArchitectureOf(const GptShape& shape) {
  if (shape.form == ModelForm::kGpt2) return "GPT2LMHeadModel";
  return HasExperts(shape) ? "MixtralForCausalLM" : "LlamaForCausalLM";
}

void WriteShape(const GptShape& shape, JsonWriter* json) {
  shape.form == ModelForm::kLlama ? WriteLlama(shape, json) : WriteGpt2(shape, json);
}

}  // namespace

Status WriteModelConfig(const std::string& directory, const ModelConfig& config) {
  JsonWriter json;
  json.BeginObject()
      .Field("tidepool_preset", config.shape.name)
      .Field("tidepool_tokens", config.bytes ? "bytes" : "ids");
  WriteShape(config.shape, &json);

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
  constexpr uint32_t kGpt2Vocab = 50257, kGpt2End = 50256;  // the last token ends a text
  const bool is_gpt2 = config.shape.form == ModelForm::kGpt2;
  JsonWriter json;
  json.BeginObject()
      .Key("architectures")
      .BeginArray()
      .String(ArchitectureOf(config.shape))
      .EndArray();
  WriteShape(config.shape, &json);

  if (is_gpt2) json.Field("layer_norm_epsilon", kGptNormEpsilon).Field("tie_word_embeddings", true);
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    const bool known = is_gpt2 && config.shape.vocab == kGpt2Vocab;
    if (known) json.Field(key, kGpt2End);
    if (!known) json.Key(key).Null();
  }
  json.Field("torch_dtype", NameOfTorch(dtype));
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
  const std::string tokens = TextIn(object, "tidepool_tokens");
  config.bytes = tokens == "bytes";
  config.names = tokens.empty() ? WeightNames::kHuggingFace : WeightNames::kOurs;

  const std::string type = TextIn(object, "model_type");
  std::string other;
  if (type == "llama") {
    other = ReadLlama(object, &config.shape);
  } else if (type == kMixtral || type == kOursWithExperts) {
    other = ReadMoeOf(object, &config.shape);
  } else if (type.empty() || type == "gpt2") {
    other = ReadGpt2(object, &config.shape);
  } else {
    other = "it describes a model of type " + type +
            ", and `trainer` has GPT-2, Llama and Mixtral; train it from Python (docs/python.md)";
  }

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
