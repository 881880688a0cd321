// The weights that a run begins with, from every kind of directory: our own, Hugging Face's in one
// file and in several, in three types, and adapters; and what is refused, by file and tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/formats/safetensors.h"
#include "optim/kernels/convert_scalar.h"
#include "trainer/inputs/run_corpus.h"
#include "trainer/inputs/saved_model.h"
#include "trainer/model/tiles/tile_places.h"
#include "trainer/model/lora.h"
#include "trainer/output/hugging_face.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace saved_model_test {

using ::testing::HasSubstr;

const GptShape kShape{"saved", 300, 16, 2, 2, 8};
constexpr const char* kIndex = "model.safetensors.index.json";

// A tensor to be written; `values` are row-major.
struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

// Small whole numbers, which each type holds exactly.
float ValueOf(const std::string& name, uint64_t element) {
  uint64_t sum = element;
  for (const char letter : name) sum = sum * 31 + static_cast<uint8_t>(letter);
  return static_cast<float>(sum % 201) - 100;
}

Tensor Ours(const ParameterNote& note) {
  Tensor tensor{note.name, note.dims, {}};
  uint64_t elements = 1;
  for (const uint64_t dim : note.dims) elements *= dim;
  for (uint64_t i = 0; i < elements; ++i) tensor.values.push_back(ValueOf(note.name, i));
  return tensor;
}

// The same as Conv1D of Hugging Face has it: [in][out].
Tensor Turned(const Tensor& ours) {
  const uint64_t out = ours.shape[0], in = ours.shape[1];
  Tensor tensor{ours.name, {in, out}, std::vector<float>(in * out)};
  for (uint64_t o = 0; o < out; ++o)
    for (uint64_t i = 0; i < in; ++i) tensor.values[i * out + o] = ours.values[o * in + i];
  return tensor;
}

class SavedModels : public ::testing::Test {
 protected:
  SavedModels() {
    std::string name = "/tmp/tidepool-saved-XXXXXX";
    directory_ = mkdtemp(name.data());
    for (const ParameterNote& note : GptParameters(kShape)) ours_.push_back(Ours(note));
  }
  ~SavedModels() override { std::filesystem::remove_all(directory_); }

  void WriteText(const std::string& file, const std::string& text) const {
    std::ofstream(directory_ + "/" + file, std::ios::binary) << text;
  }
  void Write(const std::string& file, const std::vector<Tensor>& tensors,
             const std::string& dtype = "F32",
             const std::map<std::string, std::string>& metadata = {}) const {
    SafetensorsHeader header;
    for (const auto& [key, value] : metadata) header.metadata.emplace_back(key, value);
    for (const Tensor& tensor : tensors)
      header.tensors.push_back({.name = tensor.name, .dtype = dtype, .shape = tensor.shape});
    std::string text = EncodeSafetensorsHeader(&header).value();

    const DType type = dtype == "F32" ? DType::kF32 : dtype == "BF16" ? DType::kBF16 : DType::kF16;
    for (const Tensor& tensor : tensors) {
      std::vector<char> bytes(tensor.values.size() * BytesOf(type));
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        if (type == DType::kF32) std::memcpy(bytes.data() + 4 * i, &tensor.values[i], 4);
        if (type != DType::kF32) optim::NarrowElement(bytes.data(), type, i, tensor.values[i]);
      }
      text.append(bytes.data(), bytes.size());
    }
    WriteText(file, text);
  }
  void WriteOurConfig(const LoraShape& lora = {}) const {
    ASSERT_TRUE(WriteModelConfig(directory_, {.shape = kShape,
                                              .bytes = false,
                                              .lora = lora,
                                              .base = directory_ + "/base/model.safetensors"})
                    .ok());
  }
  // `more`: further members, each with a comma before it.
  void WriteTheirConfig(const std::string& more = "") const {
    WriteText("config.json",
              R"({"model_type": "gpt2", "activation_function": "gelu_new", "n_inner": null,)"
              R"( "layer_norm_epsilon": 1e-05, "vocab_size": 300, "n_positions": 16,)"
              R"( "n_layer": 2, "n_head": 2, "n_embd": 8)" +
                  more + "}");
  }
  // With masks and the tied head, as files of several releases of transformers have them.
  std::vector<Tensor> Theirs(const std::string& prefix = "transformer.") const {
    std::vector<Tensor> theirs;
    for (const Tensor& tensor : ours_) {
      const bool linear = tensor.name.find(".c_") != std::string::npos && tensor.shape.size() == 2;
      theirs.push_back(linear ? Turned(tensor) : tensor);
      theirs.back().name = prefix + tensor.name;
    }
    theirs.push_back({prefix + "h.0.attn.bias", {1, 1, 2, 2}, {1, 0, 1, 1}});
    if (!prefix.empty()) theirs.push_back({"lm_head.weight", ours_[0].shape, ours_[0].values});
    return theirs;
  }

  // All parameters have the values of `want`.
  static void ExpectValues(const SavedModel& model, const std::vector<Tensor>& want) {
    for (const Tensor& tensor : want) {
      std::vector<float> values(tensor.values.size());
      ASSERT_TRUE(model.Read(tensor.name, values).ok());
      EXPECT_EQ(values, tensor.values) << tensor.name;
    }
  }
  void ExpectRefused(ErrorId id, const std::vector<std::string>& texts) const {
    const Result<SavedModel> model = SavedModel::Open(directory_);
    ASSERT_EQ(model.status().id(), id) << model.status().Format();
    for (const std::string& text : texts) EXPECT_THAT(model.status().Format(), HasSubstr(text));
    EXPECT_THAT(model.status().Format(), HasSubstr("\n   fix:   "));
  }

  std::string directory_;
  std::vector<Tensor> ours_;
};

TEST_F(SavedModels, OfOursAreReadAsTheyAre) {
  WriteOurConfig();
  Write("model.safetensors", ours_);
  const SavedModel model = SavedModel::Open(directory_).value();
  ExpectValues(model, ours_);
  EXPECT_EQ(model.Describe(), "F32");
  // The file alone names them, too.
  ExpectValues(SavedModel::Open(directory_ + "/model.safetensors").value(), ours_);
}

// What a run with --tile-linear saved: its layers are there in tiles, and are read whole, or from
// any row on.
TEST_F(SavedModels, OfTiledRunsAreReadAsWholeLayers) {
  WriteOurConfig();
  GptShape tiled = kShape;
  tiled.tile_elements = 40;
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : ours_) by_name[tensor.name] = &tensor;

  std::vector<Tensor> saved;
  for (const ParameterNote& note : GptParameters(tiled)) {
    const TilePlace place = PlaceOfTile(note.name, tiled);
    const auto begin =
        by_name[place.whole]->values.begin() + static_cast<std::ptrdiff_t>(place.begin);
    uint64_t elements = 1;
    for (const uint64_t dim : note.dims) elements *= dim;
    saved.push_back({note.name, note.dims, {begin, begin + static_cast<std::ptrdiff_t>(elements)}});
  }
  ASSERT_GT(saved.size(), ours_.size() + 20);
  Write("model.safetensors", saved);

  const SavedModel model = SavedModel::Open(directory_).value();
  ExpectValues(model, ours_);
  const Tensor& layer = *by_name["h.1.mlp.c_proj.weight"];
  std::vector<float> some(37);
  ASSERT_TRUE(model.ReadFrom(layer.name, 96, some).ok());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), layer.values.begin() + 96));

  std::erase_if(saved,
                [](const Tensor& tensor) { return tensor.name == "h.1.mlp.c_proj.weight.1"; });
  Write("model.safetensors", saved);
  ExpectRefused(ErrorId::kDataBad, {"h.1.mlp.c_proj.weight"});
}

TEST_F(SavedModels, OfHuggingFaceAreTurnedAndWidened) {
  WriteTheirConfig();
  for (const std::string dtype : {"F32", "BF16", "F16"}) {
    for (const std::string prefix : {"transformer.", ""}) {
      Write("model.safetensors", Theirs(prefix), dtype);
      const SavedModel model = SavedModel::Open(directory_).value();
      ExpectValues(model, ours_);
      EXPECT_EQ(model.Describe(), dtype + ", Hugging Face's GPT-2");
    }
  }
}

TEST_F(SavedModels, MayLieInSeveralFiles) {
  WriteTheirConfig();
  const std::vector<Tensor> theirs = Theirs();
  const size_t half = theirs.size() / 2;
  Write("a-1.safetensors", {theirs.begin(), theirs.begin() + half}, "BF16");
  Write("a-2.safetensors", {theirs.begin() + half, theirs.end()});
  WriteText(kIndex, R"({"weight_map": {"x": "a-2.safetensors", "y": "a-1.safetensors"}})");
  const SavedModel model = SavedModel::Open(directory_).value();
  ExpectValues(model, ours_);
  EXPECT_EQ(model.Describe(), "BF16 and F32, 2 files, Hugging Face's GPT-2");

  std::filesystem::remove(directory_ + "/a-2.safetensors");
  ExpectRefused(ErrorId::kFileUnreadable, {"a-2.safetensors"});
  WriteText(kIndex, R"({"weight_map": {"x": "a-1.safetensors"}})");
  ExpectRefused(ErrorId::kDataBad, {"tensor transformer.h.", "a-1.safetensors"});
  WriteText(kIndex, R"({"weight_map": {"x": "../a-1.safetensors"}})");
  ExpectRefused(ErrorId::kDataBad, {kIndex, "no plain name"});
  WriteText(kIndex, R"({"weight_map": {}})");
  ExpectRefused(ErrorId::kDataBad, {kIndex, "no weight_map"});
}

TEST_F(SavedModels, OfAdaptersAreMergedIntoTheirBase) {
  std::filesystem::create_directory(directory_ + "/base");
  WriteOurConfig();
  std::filesystem::rename(directory_ + "/config.json", directory_ + "/base/config.json");
  Write("base/model.safetensors", ours_);
  const LoraShape lora = MakeLoraShape(kShape, 2, 8, "attn.c_attn,mlp.c_proj").value();
  WriteOurConfig(lora);

  std::vector<Tensor> adapters;
  std::map<std::string, Tensor> by_name;
  for (const ParameterNote& note : GptParameters(kShape, lora)) {
    if (note.frozen) continue;
    adapters.push_back(Ours(note));
    by_name[note.name] = adapters.back();
  }
  const auto write = [&](const std::string& base_hash) {
    Write("adapter.safetensors", adapters, "F32", {{kBaseHashKey, base_hash}});
  };
  write(HexOf(WeightsFile::Open(directory_ + "/base/model.safetensors")->HashFile().value()));

  std::vector<Tensor> want = ours_;
  size_t merged = 0;
  for (Tensor& tensor : want) {
    const std::string layer = tensor.name.substr(0, tensor.name.rfind(".weight"));
    if (!by_name.contains(layer + ".lora_A.weight")) continue;
    ++merged;
    const Tensor &a = by_name[layer + ".lora_A.weight"], &b = by_name[layer + ".lora_B.weight"];
    const uint64_t in = tensor.shape[1];
    for (uint64_t i = 0; i < tensor.values.size(); ++i) {
      for (uint64_t k = 0; k < 2; ++k)
        tensor.values[i] += 4 * b.values[i / in * 2 + k] * a.values[k * in + i % in];
    }
  }
  EXPECT_EQ(merged, 4U);
  const SavedModel model = SavedModel::Open(directory_).value();
  ExpectValues(model, want);
  EXPECT_FALSE(model.config().lora.on());

  write(std::string(64, '0'));
  ExpectRefused(ErrorId::kDataBad, {"another base", std::string(64, '0')});
  const Status moved = SavedModel::Open(directory_, directory_ + "/moved").status();
  EXPECT_EQ(moved.id(), ErrorId::kFileUnreadable);
  EXPECT_THAT(moved.Format(), HasSubstr("the base of the adapters is not at " + directory_));
  EXPECT_THAT(moved.fix(), HasSubstr("--base DIR"));
}

TEST_F(SavedModels, ThatDoNotFitAreRefusedByFileAndTensor) {
  WriteTheirConfig();
  const std::vector<Tensor> theirs = Theirs();
  const auto write = [&](const std::function<void(std::vector<Tensor>*)>& change) {
    std::vector<Tensor> changed = theirs;
    change(&changed);
    Write("model.safetensors", changed);
  };
  write([](auto* tensors) { tensors->erase(tensors->begin() + 3); });
  ExpectRefused(ErrorId::kDataBad, {"tensor transformer.h.0.ln_1.bias", "model.safetensors"});
  // Ours, where theirs were expected.
  write([this](auto* tensors) {
    (*tensors)[4].shape = ours_[4].shape;
    ASSERT_EQ(ours_[4].name, "h.0.attn.c_attn.weight");
  });
  ExpectRefused(ErrorId::kDataBad, {"transformer.h.0.attn.c_attn.weight",
                                    "has the shape [24, 8], the model needs [8, 24]"});
  write([](auto* tensors) { tensors->push_back({"transformer.h.7.x", {1}, {0}}); });
  ExpectRefused(ErrorId::kDataBad, {"no parameter transformer.h.7.x"});
  write([](auto* tensors) {
    tensors->back().shape = {1};
    tensors->back().values = {0};
  });
  ExpectRefused(ErrorId::kDataBad, {"no parameter lm_head.weight"});
}

TEST_F(SavedModels, ThatAreNotThereAreNamedAsTheyWereGiven) {
  const Status refused = SavedModel::Open(directory_ + "/none").status();
  EXPECT_EQ(refused.id(), ErrorId::kFileUnreadable);
  EXPECT_THAT(refused.Format(), HasSubstr("there is no " + directory_ + "/none"));
}

TEST_F(SavedModels, OfOtherModelsAreRefusedByTheirConfiguration) {
  Write("model.safetensors", Theirs());
  const std::map<std::string, std::string> changes{
      {R"("tie_word_embeddings": false)", "tie_word_embeddings is false"},
      {R"("scale_attn_by_inverse_layer_idx": true)", "scale_attn_by_inverse_layer_idx is true"},
      {R"("scale_attn_weights": false)", "scale_attn_weights is false"},
      {R"("add_cross_attention": true)", "add_cross_attention is true"}};
  for (const auto& [member, text] : changes) {
    WriteTheirConfig(", " + member);
    ExpectRefused(ErrorId::kDataBad, {"config.json", text});
  }
  WriteText("config.json", R"({"model_type": "qwen3", "hidden_size": 8})");
  ExpectRefused(ErrorId::kDataBad, {"type qwen3", "docs/python.md"});
  WriteText("config.json", R"({"activation_function": "relu"})");
  ExpectRefused(ErrorId::kDataBad, {"relu", "gelu_new"});
  WriteText("config.json", R"({"n_inner": 17, "vocab_size": 300, "n_positions": 16, "n_layer": 2,)"
                           R"( "n_head": 2, "n_embd": 8})");
  ExpectRefused(ErrorId::kDataBad, {"n_inner is 17", "computes 32"});
}

GptShape LlamaOf(bool tied) {
  GptShape shape{"saved", 300, 16, 2, 2, 8};
  shape.form = ModelForm::kLlama;
  shape.llama = {.kv_heads = 1, .head_size = 4, .mlp = 12, .tied = tied};
  return shape;
}

// Keys of several releases of transformers; files with the tied head, or old frequencies.
TEST_F(SavedModels, OfLlamasAreReadByTheirNames) {
  for (const bool tied : {false, true}) {
    std::vector<Tensor> want;
    for (const ParameterNote& note : GptParameters(LlamaOf(tied))) want.push_back(Ours(note));
    std::vector<Tensor> theirs = want;
    theirs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}, {1, 0.01F}});
    if (tied) theirs.push_back({"lm_head.weight", want[0].shape, want[0].values});
    Write("model.safetensors", theirs, "BF16");
    WriteText("config.json",
              R"({"model_type": "llama", "hidden_act": "silu", "vocab_size": 300,)"
              R"( "max_position_embeddings": 16, "num_hidden_layers": 2, "num_attention_heads": 2,)"
              R"( "num_key_value_heads": 1, "hidden_size": 8, "intermediate_size": 12,)"
              R"( "rms_norm_eps": 1e-05, "rope_theta": 500000, "rope_scaling": {"type": "llama3",)"
              R"( "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0,)"
              R"( "original_max_position_embeddings": 8}, "tie_word_embeddings": )" +
                  std::string(tied ? "true}" : "false}"));
    const SavedModel model = SavedModel::Open(directory_).value();
    EXPECT_EQ(model.Describe(), "BF16, Hugging Face's Llama");
    ExpectValues(model, want);
    const LlamaSizes& sizes = model.config().shape.llama;
    EXPECT_EQ(sizes.head_size, 4U);
    EXPECT_EQ(sizes.rotary_base, 5e5);
    EXPECT_EQ(sizes.stretch.factor, 8);
    EXPECT_EQ(sizes.stretch.first_context, 8U);

    const std::string to = directory_ + "/llama";
    ASSERT_TRUE(WriteHuggingFace(model, to, DType::kF32).ok());
    const SavedModel written = SavedModel::Open(to).value();
    ExpectValues(written, want);
    EXPECT_EQ(written.config().shape.llama.tied, tied);
    EXPECT_EQ(written.config().shape.llama.stretch.factor, 8);
  }
}

TEST_F(SavedModels, OfLlamasHaveAllThatTheirConfigurationSays) {
  ASSERT_TRUE(WriteModelConfig(directory_, {.shape = LlamaOf(false), .lora = {}, .base = {}}).ok());
  std::vector<Tensor> tensors;
  for (const ParameterNote& note : GptParameters(LlamaOf(false))) tensors.push_back(Ours(note));
  Write("model.safetensors", tensors);
  ExpectValues(SavedModel::Open(directory_).value(), tensors);
  const Tensor head = tensors.back();
  tensors.pop_back();
  Write("model.safetensors", tensors);
  ExpectRefused(ErrorId::kDataBad, {"tensor lm_head.weight is in none"});

  ASSERT_TRUE(WriteModelConfig(directory_, {.shape = LlamaOf(true), .lora = {}, .base = {}}).ok());
  ExpectValues(SavedModel::Open(directory_).value(), tensors);
  tensors.push_back({"lm_head.weight", {1}, {0}});
  Write("model.safetensors", tensors);
  ExpectRefused(ErrorId::kDataBad, {"no parameter lm_head.weight"});
}

// A tokenizer that nobody here understands is in the way of text alone.
TEST_F(SavedModels, MayHaveATokenizerOfAnotherKindBesideThem) {
  WriteTheirConfig();
  Write("model.safetensors", Theirs());
  WriteText("tokenizer.json", R"({"model": {"type": "Unigram"}})");
  RunOptions options;
  options.model.from = directory_;
  options.data.batch = 1;
  options.data.context = 8;
  const RunPlan plan = MakeRunPlan(options, 1, 0, "job").value();
  const Status text = OpenRunCorpus(options, plan.shape, 1, 0, plan.from.get()).status();
  EXPECT_THAT(text.Format(), HasSubstr("Unigram"));

  std::filesystem::create_directory(directory_ + "/data");
  const std::string ids(4096, '\0');
  WriteText("data/train.bin", ids);
  WriteText("data/val.bin", ids);
  options.data.path = directory_ + "/data";
  const auto opened = OpenRunCorpus(options, plan.shape, 1, 0, plan.from.get());
  EXPECT_TRUE(opened.ok()) << opened.status().Format();
  options.data.tokenizer = directory_;
  EXPECT_FALSE(OpenRunCorpus(options, plan.shape, 1, 0, plan.from.get()).ok());
}

TEST_F(SavedModels, AreToldApartByTheirFingerprint) {
  WriteTheirConfig();
  std::vector<Tensor> theirs = Theirs();
  Write("model.safetensors", theirs);
  const std::string before = SavedModel::Open(directory_)->Fingerprint().value();
  EXPECT_EQ(before.size(), 16U);
  EXPECT_EQ(SavedModel::Open(directory_)->Fingerprint().value(), before);
  theirs[5].values[0] += 1;
  Write("model.safetensors", theirs);
  EXPECT_NE(SavedModel::Open(directory_)->Fingerprint().value(), before);
}

TEST_F(SavedModels, AreWrittenAsHuggingFaceHasThem) {
  WriteOurConfig();
  Write("model.safetensors", ours_);
  const SavedModel model = SavedModel::Open(directory_).value();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string to = directory_ + "/a/hf";
    ASSERT_TRUE(WriteHuggingFace(model, to, dtype).ok());
    const SavedModel written = SavedModel::Open(to).value();
    EXPECT_EQ(written.config().names, WeightNames::kHuggingFace);
    ExpectValues(written, ours_);
    EXPECT_EQ(WeightsFile::Open(to + "/model.safetensors")
                  ->Find("transformer.h.1.mlp.c_fc.weight")
                  ->shape,
              (std::vector<uint64_t>{8, 32}));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_ + "/a/hf"), {}), 2)
      << "nothing lies beside the two files";
}

TEST_F(SavedModels, AreNotWrittenOverThemselvesNorWhereNobodyMay) {
  WriteOurConfig();
  Write("model.safetensors", ours_);
  const SavedModel model = SavedModel::Open(directory_).value();
  const Status own = WriteHuggingFace(model, directory_ + "/.", DType::kF32);
  EXPECT_EQ(own.id(), ErrorId::kUsageError) << own.Format();
  ExpectValues(model, ours_);
  EXPECT_EQ(WriteHuggingFace(model, "/proc/none", DType::kF32).id(), ErrorId::kFileWriteFailed);
}

TEST_F(SavedModels, GiveARunItsShape) {
  WriteTheirConfig();
  Write("model.safetensors", Theirs());
  RunOptions options;
  options.model.from = directory_;
  const RunPlan plan = MakeRunPlan(options, 1, 0, "job").value();
  EXPECT_EQ(plan.shape.hidden, kShape.hidden);
  ASSERT_NE(plan.from, nullptr);
  ExpectValues(*plan.from, ours_);

  // Text would be read as ids that mean something else.
  const Status text = OpenRunCorpus(options, plan.shape, 1, 0, plan.from.get()).status();
  EXPECT_EQ(text.id(), ErrorId::kUsageError);
  EXPECT_THAT(text.Format(), HasSubstr("reads token ids, not text"));

  options.data.context = 17;
  const Status refused = MakeRunPlan(options, 1, 0, "job").status();
  EXPECT_THAT(refused.Format(), HasSubstr("--from " + directory_));
}

}  // namespace saved_model_test
}  // namespace tidepool::trainer
