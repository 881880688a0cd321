#include "trainer/model_config.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <boost/json.hpp>

#include "base/json_writer.h"

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

}  // namespace

Status WriteModelConfig(const std::string& directory, const ModelConfig& config) {
  JsonWriter json;
  json.BeginObject().Field("model_type", "gpt2").Field("activation_function", "gelu_new").Field("tidepool_preset", config.shape.name);
  json.Field("tidepool_tokens", config.bytes ? "bytes" : "ids");
  json.Field("vocab_size", config.shape.vocab).Field("n_positions", config.shape.context).Field("n_layer", config.shape.layers);
  json.Field("n_head", config.shape.heads).Field("n_embd", config.shape.hidden).EndObject();
  std::ofstream file(directory + kFile, std::ios::trunc);
  file << json.text() << "\n";
  file.close();
  if (!file) return Status(ErrorId::kFileWriteFailed, "cannot write " + directory + kFile);
  return {};
}

Result<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::string path = directory + kFile;
  std::ifstream file(path);
  if (!file)
    return Status(ErrorId::kFileUnreadable, "cannot read " + path)
        .Where(path)
        .Why(std::strerror(errno))
        .Fix("give a directory that `trainer run --save DIR` wrote");
  std::stringstream text;
  text << file.rdbuf();
  boost::json::error_code error;
  const boost::json::value parsed = boost::json::parse(text.str(), error);
  if (error || !parsed.is_object())
    return Status(ErrorId::kDataBad, path + " is not a JSON object").Fix("write it again with `trainer run --save DIR`");
  const boost::json::object& object = parsed.get_object();
  ModelConfig config;
  config.shape.name = "saved";
  config.shape.vocab = NumberIn(object, "vocab_size", 1 << 24);
  config.shape.context = NumberIn(object, "n_positions", 1 << 24);
  config.shape.layers = NumberIn(object, "n_layer", 1 << 16);
  config.shape.heads = NumberIn(object, "n_head", 1 << 16);
  config.shape.hidden = NumberIn(object, "n_embd", 1 << 20);
  const boost::json::value* tokens = object.if_contains("tidepool_tokens");
  config.bytes = tokens != nullptr && tokens->is_string() && tokens->get_string() == "bytes";
  Status shape = CheckGptShape(config.shape);
  if (!shape.ok()) return Status(ErrorId::kDataBad, path + ": " + shape.what()).Fix("write it again with `trainer run --save DIR`");
  return config;
}

}  // namespace tidepool::trainer
