#include "trainer/module/module_settings.h"

#include <string>
#include <string_view>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/run/resuming/run_note.h"

namespace tidepool::trainer {
namespace module_settings_test {

using ::testing::HasSubstr;

ModuleSettings Read(std::string_view json) {
  Result<ModuleSettings> settings = ParseModuleSettings(json);
  EXPECT_TRUE(settings.ok()) << json << "\n" << settings.status().Format();
  return settings.ok() ? std::move(settings).value() : ModuleSettings();
}

// The error of settings that are refused.
std::string Refused(const std::string& json) {
  const Status status = ParseModuleSettings(json).status();
  EXPECT_EQ(status.id(), ErrorId::kUsageError) << json << "\n" << status.Format();
  return status.Format();
}

TEST(ModuleSettingsTest, AnEmptyObjectMeansTheDefaults) {
  const ModuleSettings settings = Read("{}");
  const RunOptions defaults;
  EXPECT_EQ(settings.run.model.dtype, "fp32");
  EXPECT_EQ(settings.run.model.seed, defaults.model.seed);
  EXPECT_EQ(settings.run.training.micro_batches, 1U);
  EXPECT_EQ(settings.run.memory.rcache, "auto");
  EXPECT_EQ(settings.run.job.queue_timeout, defaults.job.queue_timeout);
  EXPECT_EQ(settings.run.server.timeout, defaults.server.timeout);
  EXPECT_FALSE(settings.run.server.standalone);
  EXPECT_FALSE(settings.run.job.or_new);
  EXPECT_TRUE(settings.optimizer == OptimizerSpec());
  ASSERT_EQ(settings.groups.size(), 1U);
  EXPECT_EQ(settings.groups[0].lr_scale, 1.0F);
  EXPECT_EQ(settings.groups[0].weight_decay, 0.0F);
  EXPECT_EQ(settings.note, "");
}

TEST(ModuleSettingsTest, EveryKeyOfTheJobIsRead) {
  const ModuleSettings settings = Read(R"({
    "job": "mine", "resume": "auto", "or_new": true, "queue_timeout": "1min",
    "rejoin_timeout": "2min", "socket_dir": "/run/x", "server_timeout": "3s", "standalone": true,
    "pool": "4GiB", "memserver": "/opt/memserver", "dtype": "bf16", "rcache": "60%",
    "chunk_size": "1MiB", "device": "cuda:1", "seed": 18446744073709551615, "micro_batches": 8,
    "max_grad_norm": 0.5, "note": "lr 1\ndata x"})");
  const RunOptions& run = settings.run;
  EXPECT_EQ(run.job.name, "mine");
  EXPECT_EQ(run.job.resume, "auto");
  EXPECT_TRUE(run.job.or_new);
  EXPECT_EQ(run.job.queue_timeout, "1min");
  EXPECT_EQ(run.job.rejoin_timeout, "2min");
  EXPECT_EQ(run.server.socket_dir, "/run/x");
  EXPECT_EQ(run.server.timeout, "3s");
  EXPECT_TRUE(run.server.standalone);
  EXPECT_EQ(run.server.pool, "4GiB");
  EXPECT_EQ(run.server.program, "/opt/memserver");
  EXPECT_EQ(run.model.dtype, "bf16");
  EXPECT_EQ(run.memory.rcache, "60%");
  EXPECT_EQ(run.memory.chunk_size, "1MiB");
  EXPECT_EQ(run.device.name, "cuda:1");
  EXPECT_EQ(run.model.seed, UINT64_MAX);
  EXPECT_EQ(run.training.micro_batches, 8U);
  EXPECT_EQ(run.optimizer.clip, 0.5F);
  EXPECT_EQ(settings.note, "lr 1\ndata x");
}

TEST(ModuleSettingsTest, EveryNumberOfTheOptimizerIsReadInFullPrecision) {
  const OptimizerSpec adam = Read(R"({"optimizer": {"rule": "adam", "states": "fp32",
    "beta1": 0.8, "beta2": 0.999, "eps": 1e-9}})")
                                 .optimizer;
  EXPECT_EQ(adam.rule, OptimizerRule::kAdam);
  EXPECT_EQ(adam.states, StateForm::kF32);
  EXPECT_EQ(adam.beta1, 0.8);
  EXPECT_EQ(adam.beta2, 0.999);
  EXPECT_EQ(adam.eps, 1e-9);
  const OptimizerSpec sgd =
      Read(R"({"optimizer": {"rule": "sgd", "momentum": 0.9, "dampening": 0, "nesterov": true}})")
          .optimizer;
  EXPECT_EQ(sgd.rule, OptimizerRule::kSgd);
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_EQ(sgd.nesterov, 1U);
  EXPECT_EQ(Read(R"({"optimizer": {"rule": "sgd", "momentum": 0.5, "dampening": 0.25}})")
                .optimizer.dampening,
            0.25);
  const OptimizerSpec adagrad =
      Read(R"({"optimizer": {"rule": "adagrad", "lr_decay": 1e-3}})").optimizer;
  EXPECT_EQ(adagrad.rule, OptimizerRule::kAdagrad);
  EXPECT_EQ(adagrad.lr_decay, 1e-3);
}

// The seed counts where states are rounded by chance, and nowhere else.
TEST(ModuleSettingsTest, EveryFormOfStatesIsTakenInBf16) {
  const std::pair<std::string, uint64_t> forms[] = {
      {"fp32", 0}, {"split", 0}, {"split-bf16", 7}, {"split-8bit", 7}};
  for (const auto& [form, seed] : forms) {
    const ModuleSettings settings =
        Read(R"({"dtype": "bf16", "seed": 7, "optimizer": {"states": ")" + form + "\"}}");
    EXPECT_EQ(NameOf(settings.optimizer.states), form);
    EXPECT_EQ(settings.optimizer.rounding_seed, seed) << form;
  }
  for (const char* form : {"split", "split-bf16", "split-8bit"}) {
    const std::string error = Refused(std::string(R"({"optimizer": {"states": ")") + form + "\"}}");
    EXPECT_THAT(error, HasSubstr("only bf16 jobs can have a split master"));
    EXPECT_THAT(error, HasSubstr("need dtype bf16"));
  }
}

TEST(ModuleSettingsTest, ParameterGroupsAreReadInTheirOrder) {
  const ModuleSettings settings = Read(R"({"parameter_groups": [[1, 0.1], [0.5, 0]]})");
  ASSERT_EQ(settings.groups.size(), 2U);
  EXPECT_EQ(settings.groups[0].lr_scale, 1.0F);
  EXPECT_EQ(settings.groups[0].weight_decay, 0.1F);
  EXPECT_EQ(settings.groups[1].lr_scale, 0.5F);
  EXPECT_EQ(settings.groups[1].weight_decay, 0.0F);
  for (const char* groups : {"[]", "1", "{}", "[1, 2]", "[[1]]", "[[1, 2, 3]]", "[[1, \"0\"]]",
                             "[[null, 0]]", "[[1, 0], []]", "null"}) {
    EXPECT_THAT(Refused(std::string(R"({"parameter_groups": )") + groups + "}"),
                HasSubstr("\"parameter_groups\" is not a list of"));
  }
}

TEST(ModuleSettingsTest, WhatIsNoObjectIsRefused) {
  for (const char* json : {"", "{", "[]", "1", "null", "{} {}", "{'job': 1}"})
    EXPECT_THAT(Refused(json), HasSubstr("no JSON object"));
}

TEST(ModuleSettingsTest, AnUnknownKeyIsRefusedWithTheKnownOnes) {
  for (const char* json : {R"({"jobs": "x"})", R"({"job": "x", "learning_rate": 1})"}) {
    const std::string error = Refused(json);
    EXPECT_THAT(error, HasSubstr("unknown name"));
    EXPECT_THAT(error, HasSubstr("known are: job, resume, or_new, queue_timeout"));
    EXPECT_THAT(error, HasSubstr("optimizer, parameter_groups"));
  }
  EXPECT_THAT(Refused(R"({"optimizer": {"rule": "sgd", "lr": 1}})"),
              HasSubstr("known are: rule, states, nesterov, beta1"));
}

TEST(ModuleSettingsTest, AValueOfAnotherKindIsRefusedByItsKey) {
  const std::pair<const char*, const char*> texts[] = {{"job", "1"},
                                                       {"resume", "true"},
                                                       {"queue_timeout", "60"},
                                                       {"socket_dir", "[]"},
                                                       {"rejoin_timeout", "null"},
                                                       {"server_timeout", "1.5"},
                                                       {"pool", "1024"},
                                                       {"memserver", "{}"},
                                                       {"dtype", "32"},
                                                       {"rcache", "0.5"},
                                                       {"plan", "2"},
                                                       {"chunk_size", "1"},
                                                       {"device", "0"},
                                                       {"note", "[\"a\"]"}};
  for (const auto& [key, value] : texts) {
    EXPECT_THAT(Refused("{\"" + std::string(key) + "\": " + value + "}"),
                HasSubstr("\"" + std::string(key) + "\" is not a text"));
  }
  for (const char* key : {"or_new", "standalone"}) {
    for (const char* value : {"1", "\"true\"", "null"}) {
      EXPECT_THAT(Refused("{\"" + std::string(key) + "\": " + value + "}"),
                  HasSubstr("\"" + std::string(key) + "\" is not true or false"));
    }
  }
  for (const char* value : {"-1", "1.5", "\"1\"", "18446744073709551616", "null"}) {
    EXPECT_THAT(Refused(std::string(R"({"seed": )") + value + "}"),
                HasSubstr("\"seed\" is not a whole number from 0 to 18446744073709551615"));
  }
  for (const char* value : {"\"1\"", "true", "null", "1e999"})
    EXPECT_FALSE(ParseModuleSettings(std::string(R"({"max_grad_norm": )") + value + "}").ok());
  EXPECT_THAT(Refused(R"({"max_grad_norm": "1"})"), HasSubstr("\"max_grad_norm\" is not a number"));
  EXPECT_THAT(Refused(R"({"optimizer": "adam"})"), HasSubstr("\"optimizer\" is not an object"));
  EXPECT_THAT(Refused(R"({"optimizer": {"nesterov": 1}})"), HasSubstr("\"nesterov\" is not true"));
  EXPECT_THAT(Refused(R"({"optimizer": {"beta1": "0.9"}})"),
              HasSubstr("\"beta1\" is not a number"));
}

TEST(ModuleSettingsTest, MicroBatchesAreFromOneToTheMostOfAJob) {
  const std::string most = std::to_string(client::kMicroBatchesMax);
  EXPECT_EQ(Read(R"({"micro_batches": )" + most + "}").run.training.micro_batches,
            client::kMicroBatchesMax);
  const std::string more = std::to_string(uint64_t{client::kMicroBatchesMax} + 1);
  for (const std::string& value : {std::string("0"), std::string("-1"), std::string("1.5"), more}) {
    EXPECT_THAT(Refused(R"({"micro_batches": )" + value + "}"),
                HasSubstr("\"micro_batches\" is not a whole number from 1 to " + most));
  }
}

TEST(ModuleSettingsTest, ADtypeThatCannotBeTrainedIsRefused) {
  const std::string half = Refused(R"({"dtype": "fp16"})");
  EXPECT_THAT(half, HasSubstr("dtype fp16 needs a loss scale"));
  EXPECT_THAT(half, HasSubstr("choose dtype bf16"));
  EXPECT_THAT(Refused(R"({"dtype": "fp64"})"), HasSubstr("unknown dtype \"fp64\""));
  EXPECT_THAT(Refused(R"({"dtype": ""})"), HasSubstr("unknown dtype"));
}

TEST(ModuleSettingsTest, NumbersThatARuleCannotHaveAreRefused) {
  const std::pair<const char*, const char*> bad[] = {
      {R"("rule": "rmsprop")", "\"rule\" is not adamw, adam, sgd, adagrad or lion"},
      {R"("states": "fp16")", "\"states\" is not fp32, split, split-bf16 or split-8bit"},
      {R"("beta1": 1)", "beta1 and beta2 must lie in [0, 1)"},
      {R"("beta2": -0.1)", "beta1 and beta2 must lie in [0, 1)"},
      {R"("eps": -1e-8)", "eps must be finite and not negative"},
      {R"("momentum": 1.5)", "momentum must lie in [0, 1)"},
      {R"("dampening": 2)", "dampening must lie in [0, 1]"},
      {R"("lr_decay": -1)", "lr_decay must be finite and not negative"},
      {R"("nesterov": true)", "nesterov needs a momentum and no dampening"}};
  for (const auto& [numbers, what] : bad)
    EXPECT_THAT(Refused(std::string(R"({"optimizer": {)") + numbers + "}}"), HasSubstr(what));
}

TEST(ModuleSettingsTest, ANoteIsAtMostAsLongAsTheServerKeeps) {
  const std::string longest(kRunNoteBytesMax, 'n');
  EXPECT_EQ(Read(R"({"note": ")" + longest + "\"}").note, longest);
  EXPECT_THAT(Refused(R"({"note": ")" + longest + "n\"}"),
              HasSubstr("\"note\" is not at most 480 bytes"));
}

}  // namespace module_settings_test
}  // namespace tidepool::trainer
