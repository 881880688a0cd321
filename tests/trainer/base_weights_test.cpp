// A saved model as the base of adapters: its chunks hold the file's values, and a file that does
// not fit is refused with what is wrong.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/formats/safetensors.h"
#include "base/units.h"
#include "client/job_spec.h"
#include "optim/kernels/convert_scalar.h"
#include "shm/spec/state_bytes.h"
#include "trainer/inputs/frozen_base.h"
#include "trainer/inputs/model_config.h"
#include "trainer/run/describe_plan.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace base_weights_test {

const GptShape kShape{"deep", 256, 16, 4, 2, 32};

float ValueOf(size_t tensor, size_t element) {
  return static_cast<float>(std::sin(static_cast<double>(1000 * tensor + element)));
}

class BaseWeights : public ::testing::Test {
 protected:
  BaseWeights() {
    std::string name = "/tmp/tidepool-base-XXXXXX";
    directory_ = mkdtemp(name.data());
    for (const ParameterNote& note : GptParameters(kShape)) {
      header_.tensors.push_back({.name = note.name, .dtype = "F32", .shape = note.dims});
    }
    options_.adapters.base = directory_;
    options_.adapters.rank = 4;
    options_.memory.chunk_size = "16KiB";
    options_.memory.rcache = "50%";
    EXPECT_TRUE(
        WriteModelConfig(directory_, {.shape = kShape, .bytes = true, .lora = {}, .base = {}})
            .ok());
  }
  ~BaseWeights() override { std::filesystem::remove_all(directory_); }

  std::string File() const { return directory_ + "/model.safetensors"; }
  // Writes the tensors that header_ lists, the first `bytes` of the file.
  void Write(uint64_t bytes = UINT64_MAX) {
    std::string text = EncodeSafetensorsHeader(&header_).value();
    for (size_t i = 0; i < header_.tensors.size(); ++i) {
      const SafetensorsEntry& tensor = header_.tensors[i];
      const uint64_t size = SafetensorsElementBytes(tensor.dtype),
                     count = (tensor.end - tensor.begin) / size;
      for (size_t e = 0; e < count; ++e) {
        const float value = ValueOf(i, e);
        text.append(reinterpret_cast<const char*>(&value), size);
      }
    }
    std::ofstream(File(), std::ios::binary) << text.substr(0, bytes);
  }
  SafetensorsEntry& Tensor(const std::string& name) {
    for (SafetensorsEntry& tensor : header_.tensors) {
      if (tensor.name == name) return tensor;
    }
    return header_.tensors.emplace_back();
  }
  Result<RunPlan> Plan() const { return MakeRunPlan(options_, 1, 0, "job"); }
  void ExpectRefused(ErrorId id, const std::vector<std::string>& texts) const {
    const Result<RunPlan> plan = Plan();
    ASSERT_EQ(plan.status().id(), id) << plan.status().Format();
    const std::string text = plan.status().Format();
    for (const std::string& part : texts)
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in:\n" << text;
    EXPECT_NE(text.find("\n   where: "), std::string::npos) << text;
    EXPECT_NE(text.find("\n   fix:   "), std::string::npos) << text;
  }

  std::string directory_;
  SafetensorsHeader header_;
  RunOptions options_;
};

// All bytes of a frozen chunk, read in pieces of a size that divides nothing.
std::vector<std::byte> ChunkBytes(const RunPlan& plan, size_t index) {
  std::vector<std::byte> bytes(plan.spec.frozen[index].elements *
                               tidepool::BytesOf(plan.layout.dtype));
  for (size_t at = 0; at < bytes.size(); at += 1000) {
    const size_t some = std::min<size_t>(1000, bytes.size() - at);
    EXPECT_TRUE(plan.base->Read(index, at, {bytes.data() + at, some}).ok());
  }
  return bytes;
}

TEST_F(BaseWeights, FillTheFrozenChunksWithTheFilesValuesInEveryType) {
  Write();
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    options_.model.dtype = dtype;
    const RunPlan plan = Plan().value();
    std::map<std::string, size_t> number;
    for (size_t i = 0; i < header_.tensors.size(); ++i) number[header_.tensors[i].name] = i;
    uint64_t seen = 0;
    for (const ParameterPlace& place : plan.layout.parameters) {
      if (place.chunk < plan.layout.TrainedChunks()) continue;
      const std::vector<std::byte> bytes =
          ChunkBytes(plan, place.chunk - plan.layout.TrainedChunks());
      for (uint64_t e = 0; e < place.element_count; e += 7) {
        const float is =
            optim::WidenElement(bytes.data(), plan.layout.dtype, place.element_begin + e);
        uint16_t narrow = 0;
        const float value = ValueOf(number.at(place.name), e);
        if (plan.layout.dtype != DType::kF32)
          optim::NarrowElement(&narrow, plan.layout.dtype, 0, value);
        ASSERT_EQ(is, plan.layout.dtype == DType::kF32
                          ? value
                          : optim::WidenElement(&narrow, plan.layout.dtype, 0))
            << place.name;
      }
      seen += place.element_count;
    }
    EXPECT_EQ(seen, GptParameterCount(kShape));
  }
}

TEST_F(BaseWeights, AreNamedByTheirContentAndAlikeForAllAdaptersOverThem) {
  Write();
  RunPlan first = Plan().value();
  ASSERT_TRUE(NameFrozenChunks(&first).ok());
  ASSERT_GT(first.spec.frozen.size(), 3U);
  for (size_t i = 0; i < first.spec.frozen.size(); ++i)
    EXPECT_EQ(first.spec.frozen[i].content, HashOf(ChunkBytes(first, i)));
  options_.adapters.base = File();
  options_.adapters.rank = 16;
  options_.adapters.targets = "mlp.c_fc,attn.c_attn";
  options_.model.seed = 9;
  RunPlan other = Plan().value();
  ASSERT_TRUE(NameFrozenChunks(&other).ok());
  EXPECT_EQ(other.spec.frozen, first.spec.frozen);
  EXPECT_NE(other.spec.ParameterCount(), first.spec.ParameterCount());
}

TEST_F(BaseWeights, AreCountedOnceBesideTheAdapters) {
  Write();
  RunPlan plan = Plan().value();
  ASSERT_TRUE(NameFrozenChunks(&plan).ok());
  EXPECT_EQ(plan.memory.frozen, client::FrozenPoolBytes(plan.spec));
  EXPECT_EQ(plan.memory.trained_parameters, plan.spec.ParameterCount());
  EXPECT_EQ(plan.memory.parameters, plan.spec.ParameterCount() + GptParameterCount(kShape));
  const client::StateBytes states = client::StateBytesOf(plan.spec);
  EXPECT_LT(states.total(), plan.memory.frozen) << "of the base there are no states";
  EXPECT_EQ(plan.memory.master, states.master);
  const std::string text = DescribePlan(plan), json = PlanJson(plan);
  EXPECT_NE(text.find("\nbase      " + FormatBytes(plan.memory.frozen) + " of the pool in "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\nadapters  " + FormatCount(plan.memory.trained_parameters) +
                      " parameters, of rank 4 beside "),
            std::string::npos);
  EXPECT_NE(json.find("\"frozen_bytes\":" + std::to_string(plan.memory.frozen)), std::string::npos)
      << json;
  EXPECT_NE(
      json.find("\"pool_bytes\":" +
                std::to_string(RoundUp(states.total() + plan.memory.frozen, kMiB)) + ",\"rcache"),
      std::string::npos);
}

TEST_F(BaseWeights, ThatDoNotFitAreRefusedWithWhatIsThere) {
  header_.tensors.erase(header_.tensors.begin() + 5);
  Write();
  ExpectRefused(ErrorId::kDataBad, {File(), "h.0.attn.c_attn.bias", "no such tensor"});
  header_.tensors.insert(header_.tensors.begin() + 5,
                         {.name = "h.0.attn.c_attn.bias", .dtype = "F32", .shape = {97}});
  Write();
  ExpectRefused(ErrorId::kDataBad,
                {File(), "h.0.attn.c_attn.bias", "has the shape [97], the model needs [96]"});
  Tensor("h.0.attn.c_attn.bias") = {.name = "h.0.attn.c_attn.bias", .dtype = "I32", .shape = {96}};
  Write();
  ExpectRefused(ErrorId::kDataBad, {File(), "h.0.attn.c_attn.bias",
                                    "it is I32; weights are read as F32, BF16 or F16"});
  Tensor("h.0.attn.c_attn.bias") = {.name = "h.0.attn.c_attn.bias", .dtype = "F32", .shape = {96}};
  header_.tensors.push_back({.name = "h.9.extra", .dtype = "F32", .shape = {3}});
  Write();
  ExpectRefused(ErrorId::kDataBad, {File(), "no parameter h.9.extra", "another model"});
}

TEST_F(BaseWeights, ThatAreCutOffOrMissingAreRefused) {
  ExpectRefused(ErrorId::kFileUnreadable, {File(), "No such file"});
  Write();
  const uint64_t whole = std::filesystem::file_size(File());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{7}, uint64_t{500}, whole - 1}) {
    Write(bytes);
    ExpectRefused(ErrorId::kSafetensorsBad, {File(), "cut off"});
  }
  std::filesystem::remove(directory_ + "/config.json");
  ExpectRefused(ErrorId::kFileUnreadable, {directory_ + "/config.json"});
}

TEST_F(BaseWeights, ThatBecomeShorterWhileTheyAreReadAreNoticed) {
  Write();
  RunPlan plan = Plan().value();
  std::filesystem::resize_file(File(), std::filesystem::file_size(File()) / 2);
  const Status named = NameFrozenChunks(&plan);
  EXPECT_EQ(named.id(), ErrorId::kSafetensorsBad) << named.Format();
}

TEST_F(BaseWeights, NeedAdaptersAndAdaptersNeedThem) {
  Write();
  options_.adapters.rank = 0;
  ExpectRefused(ErrorId::kUsageError, {"--base " + directory_, "--lora-rank N"});
  options_.adapters.rank = 33;
  ExpectRefused(ErrorId::kUsageError, {"--lora-rank 33", "from 1 to 32"});
  options_.adapters.rank = 4;
  options_.adapters.alpha = 0;
  ExpectRefused(ErrorId::kUsageError, {"--lora-alpha", "positive"});
  options_.adapters.alpha = 16;
  options_.adapters.targets = "mlp.c_fc,attn.c_atn";
  ExpectRefused(ErrorId::kUsageError, {"\"attn.c_atn\"", "did you mean \"attn.c_attn\"?",
                                       "attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj, or all"});
  options_.adapters.targets = "";
  ExpectRefused(ErrorId::kUsageError, {"there is no linear layer \"\""});
  options_.adapters.targets = "all";
  options_.adapters.base.clear();
  options_.model.preset = "tiny";
  options_.memory.chunk_size = "auto";
  RunPlan alone = Plan().value();  // as an estimate may be asked for
  const Status named = NameFrozenChunks(&alone);
  EXPECT_EQ(named.id(), ErrorId::kUsageError);
  EXPECT_NE(named.Format().find("--lora-rank 4 without a base"), std::string::npos)
      << named.Format();
}

TEST_F(BaseWeights, AreNotAdaptersThemselves) {
  const LoraShape lora{.rank = 4, .alpha = 8, .targets = {"attn.c_attn", "mlp.c_fc"}};
  ASSERT_TRUE(
      WriteModelConfig(
          directory_,
          {.shape = kShape, .bytes = true, .lora = lora, .base = "/models/a/model.safetensors"})
          .ok());
  const ModelConfig read = ReadModelConfig(directory_).value();
  EXPECT_EQ(read.lora.rank, 4U);
  EXPECT_EQ(read.lora.alpha, 8);
  EXPECT_EQ(TargetsText(read.lora), "attn.c_attn,mlp.c_fc");
  EXPECT_EQ(read.shape.name, "deep");
  ExpectRefused(ErrorId::kUsageError, {"holds adapters", "--base /models/a/model.safetensors"});
}

// --save of a disk that is full.
TEST_F(BaseWeights, KeepTheirDescriptionWhereAnotherOneDoesNotFit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{40, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status failed =
      WriteModelConfig(directory_, {.shape = kShape, .bytes = false, .lora = {}, .base = {}});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(failed.id(), ErrorId::kFileWriteFailed);
  EXPECT_EQ(failed.where(), directory_ + "/config.json");
  const auto read = ReadModelConfig(directory_);
  ASSERT_TRUE(read.ok()) << read.status().Format();
  EXPECT_TRUE(read.value().bytes);
}

TEST_F(BaseWeights, KeepTheirBytesAndModeWhenMetadataIsAdded) {
  Write();
  std::filesystem::permissions(
      File(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const WeightsFile before = WeightsFile::Open(File()).value();
  ASSERT_TRUE(AddMetadata(File(), {{"key", "value"}}).ok());
  const WeightsFile after = WeightsFile::Open(File()).value();
  EXPECT_EQ(after.Metadata("key"), "value");
  EXPECT_EQ(before.Metadata("key"), "");
  EXPECT_NE(after.HashFile().value(), before.HashFile().value());
  EXPECT_EQ(std::filesystem::status(File()).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ASSERT_EQ(after.header().tensors.size(), before.header().tensors.size());
  for (size_t i = 0; i < after.header().tensors.size(); ++i) {
    std::vector<float> a(4), b(4);
    ASSERT_TRUE(before.Read(before.header().tensors[i], 1, a).ok() &&
                after.Read(after.header().tensors[i], 1, b).ok());
    EXPECT_EQ(a, b) << after.header().tensors[i].name;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 2)
      << "no temporary file stays";
}

}  // namespace base_weights_test
}  // namespace tidepool::trainer
