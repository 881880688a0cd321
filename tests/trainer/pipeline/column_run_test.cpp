// Columns of a pipeline have the bits of plain LibTorch that adds up each column's micro-batches in
// fp32, and then the columns.
//
// TIDEPOOL_ALL_STAGES: all combinations in place of a covering set.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "tests/trainer/parity/served_ranks.h"
#include "tests/trainer/pipeline/staged_ranks.h"
#include "trainer/model/gpt.h"
#include "trainer/model/gpt_init.h"
#include "trainer/pipeline/stage_sums.h"

namespace tidepool::trainer {
namespace column_run_test {

// What columns must have the bits of: forward and backward of the whole model in plain LibTorch,
// micro-batch after micro-batch; gradients added up in fp32 within each column, then over columns.
// One rank hands the sums in, for the server's update.
class PlainColumns {
 public:
  PlainColumns(const Combination& c, const ServedPlace& at, Outcomes* outcomes)
      : combination_(c), at_(at), outcomes_(outcomes) {}

  Status Run() {
    at::set_num_threads(1);
    TP_RETURN_IF_ERROR(Make());
    TP_RETURN_IF_ERROR(engine_->LoadWeights([&](ParameterId id, std::span<float> values) {
      const std::string& name = plan_.layout.parameters[id].name;
      InitGptParameter(name, plan_.shape, options_.model.seed, 0, values);
      return Status();
    }));

    std::vector<std::vector<double>> losses(combination_.columns);
    for (uint64_t step = 0; step < kSteps; ++step) TP_RETURN_IF_ERROR(Step(step, &losses));
    for (const auto& column : losses)
      outcomes_->losses.insert(outcomes_->losses.end(), column.begin(), column.end());

    const UniqueFd directory(open(at_.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    TP_RETURN_IF_ERROR(
        session_->service()->SaveWeights(directory.get(), "weights.safetensors", kSteps));
    outcomes_->weights = ReadWeights(at_.directory + "/weights.safetensors");
    engine_.reset();
    return session_->Close();
  }

 private:
  // For the job, a column's sum is what a micro-batch of one stage is.
  Status Make() {
    options_ = OptionsOf(combination_);
    options_.training.micro_batches = combination_.columns;
    Cut(1, 1, &options_);
    TP_ASSIGN_OR_RETURN(plan_, MakeRunPlan(Shape(), options_, 1, 0, "columns"));
    SessionTask task{.server = options_.server,
                     .job = options_.job,
                     .spec = plan_.spec,
                     .groups = plan_.layout.data_groups};
    TP_ASSIGN_OR_RETURN(session_, at_.Open(std::move(task)));

    const auto type = plan_.layout.dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
    model_ = std::make_unique<Gpt>(plan_.shape, torch::TensorOptions().dtype(type));
    model_->SetCheckpointing(options_.model.activation_checkpointing, nullptr);
    EngineParts parts{.service = session_->service(),
                      .groups = session_->groups(),
                      .parameters = {},
                      .clock = &clock_};
    const auto named = model_->named_parameters();
    for (const ParameterPlace& place : plan_.layout.parameters)
      parts.parameters.push_back(named[place.name]);
    parts.sink = [this](ParameterId id, const at::Tensor& gradient) { return Add(id, gradient); };

    EngineOptions engine;
    engine.cache.separate_while_recording = false;
    engine.cache.tail_bytes = plan_.stages->tail_bytes;
    engine.cache.f32_sums = true;
    TP_ASSIGN_OR_RETURN(engine_, TrainingEngine::Create(plan_.layout, engine, std::move(parts)));
    sums_ = std::make_unique<StageSums>(&plan_.layout, &*plan_.stages);
    const client::Attachment& slot = session_->service()->attachment();
    sums_->Attach(engine_->open_cache(),
                  slot.rcache + slot.rcache_bytes - plan_.stages->tail_bytes);
    return {};
  }

  Status Add(ParameterId id, const at::Tensor& gradient) {
    const at::NoGradGuard no_gradients;
    at::Tensor& sum = of_columns_[column_][id];
    if (sum.defined()) return sum.add_(gradient), Status();
    sum = gradient.to(at::kFloat).clone();
    return {};
  }

  Status Step(uint64_t step, std::vector<std::vector<double>>* losses) {
    of_columns_.assign(combination_.columns,
                       std::vector<at::Tensor>(plan_.layout.parameters.size()));
    sums_->BeginStep();
    TP_RETURN_IF_ERROR(engine_->RunWhole(step, [&](std::vector<at::Tensor>* all) {
      for (column_ = 0; column_ < combination_.columns; ++column_) GoThroughColumn(step, all);
      return HandIn();
    }));

    TP_ASSIGN_OR_RETURN(const std::vector<double> values, engine_->TakeLosses());
    for (size_t i = 0; i < values.size(); ++i)
      (*losses)[i / combination_.micro_batches].push_back(values[i]);
    TP_ASSIGN_OR_RETURN(const client::Outcome sealed,
                        engine_->EndStep({.version = step, .learning_rate = 0.01F}));
    outcomes_->norms.push_back(sealed.grad_norm);
    return {};
  }

  void GoThroughColumn(uint64_t step, std::vector<at::Tensor>* losses) {
    const double factor = 1.0 / (combination_.micro_batches * combination_.columns);
    const auto tokens = [](const std::vector<int64_t>& ids) {
      return at::tensor(ids).view({int64_t{kSequences}, int64_t{kTokens}});
    };
    for (const Batch& batch : BatchesOf(step, combination_.micro_batches, column_)) {
      const at::Tensor loss = model_->Loss(tokens(batch.inputs), tokens(batch.targets));
      (loss * factor).backward();
      losses->push_back(loss.detach());
    }
  }

  Status HandIn() {
    for (ParameterId id = 0; id < plan_.layout.parameters.size(); ++id) {
      for (uint32_t column = 0; column < combination_.columns; ++column) {
        sums_->BeginBackward(0, column);
        TP_RETURN_IF_ERROR(sums_->Take(id, of_columns_[column][id]));
      }
    }
    return sums_->EndStage(0);
  }

  const Combination combination_;
  const ServedPlace& at_;
  Outcomes* const outcomes_;
  SteadyClock clock_;
  RunOptions options_;
  RunPlan plan_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<StageSums> sums_;
  std::unique_ptr<TrainingEngine> engine_;
  uint32_t column_ = 0;
  std::vector<std::vector<at::Tensor>> of_columns_;  // sums, by parameter
};

Outcomes TrainPlainColumns(const Combination& c) {
  Outcomes outcomes;
  const Status trained = RunServedRanks(
      1, {}, [&](const ServedPlace& at) { return PlainColumns(c, at, &outcomes).Run(); });
  EXPECT_TRUE(trained.ok()) << trained.Format();
  return outcomes;
}

std::vector<Combination> CombinationsOfColumns() {
  if (std::getenv("TIDEPOOL_ALL_STAGES") == nullptr) {
    return {{2, 2, "bf16", true, false, false, 2, 2},
            {3, 3, "fp32", true, true, true, 1, 3},
            {4, 1, "bf16", false, false, true, 2, 2}};
  }
  std::vector<Combination> all;
  for (uint32_t stages = 1; stages <= 4; ++stages) {
    for (uint32_t ranks = 1; ranks <= std::min(stages, 2U); ++ranks) {
      for (uint32_t columns = 2; columns <= 3; ++columns) {
        for (uint32_t micro_batches = 1; micro_batches <= 3; ++micro_batches) {
          for (const char* dtype : {"fp32", "bf16"}) {
            for (const uint32_t bits : {0U, 3U, 5U, 6U})
              all.push_back({stages, micro_batches, dtype, (bits & 1) != 0, (bits & 2) != 0,
                             (bits & 4) != 0, ranks, columns});
          }
        }
      }
    }
  }
  return all;
}

// With one micro-batch a gradient is its own sum, and columns are the ranks of an ordinary run.
TEST(ColumnRun, AddsUpWithinAColumnAndThenOverColumns) {
  for (const Combination& each : CombinationsOfColumns()) {
    SCOPED_TRACE(::testing::PrintToString(each));
    const std::vector<Outcomes> ranks = TrainRanks(Staged(each), each.ranks * each.columns);
    Outcomes columns = AsOne(ranks);
    ASSERT_EQ(columns.losses.size(), kSteps * each.micro_batches * each.columns);
    Outcomes plain = each.micro_batches == 1 ? AsOne(TrainRanks(OptionsOf(each), each.columns))
                                             : TrainPlainColumns(each);
    if (each.micro_batches > 1) columns.held_out.clear();
    ExpectSameBits(columns, plain);

    uint64_t handed_in = 0, sums = 0;
    const ChunkLayout& layout = ranks.front().plan.layout;
    for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
      sums += layout.chunks[chunk].elements *
              BytesOf(ranks.front().plan.stages->SumType(layout, chunk));
    for (const Outcomes& rank : ranks) handed_in += rank.moved.back().bytes_d2h;
    EXPECT_EQ(handed_in, sums) << "the sum over all columns leaves once";
    if (HasFailure()) return;
  }
}

}  // namespace column_run_test
}  // namespace tidepool::trainer
