#include "tests/trainer/parity/expert_rig.h"

#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "base/random.h"
#include "base/unique_fd.h"
#include "tests/trainer/parity/served_ranks.h"
#include "trainer/engine/engine.h"
#include "trainer/run/job.h"
#include "trainer/layout/build_layout.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kExpertWidth = 32, kExpertSequences = 4;
constexpr int kExpertLayers = 6;
constexpr uint32_t kExpertRanks = 3;
// Bytes of a chunk: two dense layers or experts.
constexpr uint64_t kTwoLayersBytes = 2 * (kExpertWidth + 1) * kExpertWidth * sizeof(float);
const std::vector<std::vector<Rank>> kExpertGroups{{0, 1, 2}, {0}, {1, 2}};

uint32_t ExpertsOf(Rank rank) {
  return rank == 0 ? 1 : 2;
}

// The weight of layer `layer`; `group` is 0 for the dense part.
std::string WeightName(int layer, uint32_t group) {
  return (group == 0 ? "dense" : "expert" + std::to_string(group) + ".") + std::to_string(layer);
}

std::string BiasName(int layer) {
  return "bias" + std::to_string(layer);
}

std::vector<ParameterNote> ExpertNotes() {
  const uint64_t width = kExpertWidth;
  std::vector<ParameterNote> notes;
  for (int layer = 0; layer < kExpertLayers; ++layer) {
    for (uint32_t group = 0; group < kExpertGroups.size(); ++group) {
      notes.push_back({.name = WeightName(layer, group),
                       .dims = {width, width},
                       .optimizer_group = kDecayGroup,
                       .data_group = group});
      if (group == 0)
        notes.push_back(
            {.name = BiasName(layer), .dims = {width}, .optimizer_group = kNoDecayGroup});
    }
  }
  return notes;
}

// Values in [-scale, scale) that depend only on what they are for.
void FillRandomly(uint64_t seed, float scale, std::span<float> values) {
  SplitMix64 random(seed);
  for (float& value : values) value = scale * static_cast<float>(2 * random.Unit() - 1);
}

void FillWeight(uint32_t note, std::span<float> values) {
  FillRandomly(1000 + note, 0.3f, values);
}

// Inputs and targets of one rank's micro-batch.
std::pair<at::Tensor, at::Tensor> ExpertBatch(uint64_t step, uint32_t micro, Rank rank) {
  at::Tensor both = torch::empty({2, kExpertSequences, kExpertWidth});
  FillRandomly((step << 16) + (micro << 8) + rank, 1,
               {both.mutable_data_ptr<float>(), static_cast<size_t>(both.numel())});
  return {both[0], both[1]};
}

using Parameters = std::map<std::string, at::Tensor>;

// The loss that one rank computes, through the server and in plain LibTorch.
at::Tensor ExpertLoss(const Parameters& parameters, Rank rank,
                      const std::pair<at::Tensor, at::Tensor>& batch) {
  at::Tensor x = batch.first;
  for (int layer = 0; layer < kExpertLayers; ++layer) {
    const at::Tensor dense = torch::tanh(
        torch::linear(x, parameters.at(WeightName(layer, 0)), parameters.at(BiasName(layer))));
    x = dense +
        torch::tanh(torch::linear(dense, parameters.at(WeightName(layer, ExpertsOf(rank)))));
  }
  return torch::mse_loss(x, batch.second);
}

RunOptions OptionsOf(const ExpertRig& rig) {
  RunOptions run;
  run.training.steps = rig.steps;
  run.training.micro_batches = rig.micro_batches;
  run.optimizer.clip = rig.clip;
  run.training.learning_rate = 3e-3f;
  run.optimizer.weight_decay = 0.5f;
  return run;
}

// One rank of a run through the server.
class ExpertRank {
 public:
  ExpertRank(const ExpertRig& rig, const ServedPlace& at, ExpertResult* result)
      : rig_(rig), at_(at), rank_(at_.place.rank), result_(result) {}

  Status Run() {
    at::set_num_threads(1);
    TP_RETURN_IF_ERROR(Build());
    TP_RETURN_IF_ERROR(engine_->LoadWeights([this](ParameterId id, std::span<float> values) {
      FillWeight(layout_.parameters[id].note, values);
      return Status();
    }));
    for (uint64_t step = 0; step < rig_.steps; ++step) TP_RETURN_IF_ERROR(Step(step));
    TP_ASSIGN_OR_RETURN(double loss,
                        engine_->Evaluate(version_, [this] { return Loss(rig_.steps, 0); }));
    TP_RETURN_IF_ERROR(NoteLoss(loss));
    result_->evictions[rank_] = engine_->cache().counters().evictions;
    if (rank_ == 0) TP_RETURN_IF_ERROR(Save());
    return session_->Close();
  }

 private:
  Status Build() {
    LayoutOptions options;
    options.world = kExpertRanks;
    options.data_groups = kExpertGroups;
    options.chunk_bytes = kTwoLayersBytes;
    TP_ASSIGN_OR_RETURN(layout_, BuildLayout(ExpertNotes(), options));
    RcachePlan rcache;  // all ranks ask for the same
    for (Rank rank = 0; rank < kExpertRanks; ++rank)
      rcache.bytes = std::max(rcache.bytes, layout_.RcacheBytes(rank, rig_.blocks));
    SessionTask task{.server = {},
                     .job = {},
                     .spec = MakeJobSpec(layout_, OptionsOf(rig_), rcache, "experts"),
                     .groups = layout_.data_groups};
    TP_ASSIGN_OR_RETURN(session_, at_.Open(std::move(task)));
    std::vector<at::Tensor> tensors;
    for (const ParameterPlace& place : layout_.parameters) {
      const std::vector<int64_t> dims(place.dims.begin(), place.dims.end());
      tensors.push_back(parameters_[place.name] = torch::empty(dims, torch::requires_grad()));
    }
    EngineOptions engine;
    engine.rank = rank_;
    engine.micro_batches = rig_.micro_batches;
    TP_ASSIGN_OR_RETURN(
        engine_, TrainingEngine::Create(
                     layout_, engine, {session_->service(), session_->groups(), tensors, &clock_}));
    return {};
  }

  at::Tensor Loss(uint64_t step, uint32_t micro) {
    return ExpertLoss(parameters_, rank_, ExpertBatch(step, micro, rank_));
  }

  Status Step(uint64_t step) {
    const CacheCounters before = engine_->cache().counters();
    double loss = 0;
    for (uint32_t micro = 0; micro < rig_.micro_batches; ++micro) {
      TP_ASSIGN_OR_RETURN(const double value,
                          engine_->TrainMicroBatch(
                              version_, micro, [&] { return Loss(step, micro); },
                              1.0 / (rig_.micro_batches * kExpertRanks)));
      loss += value / rig_.micro_batches;
    }
    client::StepEnd end;
    end.version = version_;
    end.learning_rate = OptionsOf(rig_).training.learning_rate;
    TP_ASSIGN_OR_RETURN(const client::Outcome sealed, engine_->EndStep(end));
    version_ = sealed.version;
    const CacheCounters now = engine_->cache().counters();
    const GroupTraffic planned = SumOf(engine_->planned_traffic());
    result_->planned[rank_].push_back({planned.fetched, planned.handed_in});
    result_->moved[rank_].push_back(
        {now.bytes_h2d - before.bytes_h2d, now.bytes_d2h - before.bytes_d2h});
    if (rank_ == 0) result_->grad_norms.push_back(sealed.grad_norm);
    return NoteLoss(loss);
  }

  // Notes the mean over ranks.
  Status NoteLoss(double loss) {
    TP_RETURN_IF_ERROR(session_->world()->SumDoubles(&loss, 1));
    if (rank_ == 0) result_->losses.push_back(loss / kExpertRanks);
    return {};
  }

  Status Save() {
    const UniqueFd directory(open(at_.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    TP_RETURN_IF_ERROR(
        session_->service()->SaveWeights(directory.get(), "weights.safetensors", version_));
    result_->weights = ReadWeights(at_.directory + "/weights.safetensors");
    return {};
  }

  const ExpertRig& rig_;
  const ServedPlace at_;
  const Rank rank_;
  ExpertResult* const result_;
  SteadyClock clock_;
  ChunkLayout layout_;
  std::unique_ptr<RunSession> session_;
  Parameters parameters_;
  std::unique_ptr<TrainingEngine> engine_;
  Version version_ = 0;
};

// AdamW on all parameters, decay off for biases.
torch::optim::AdamW OptimizerOf(const ExpertRig& rig, const Parameters& parameters) {
  const RunOptions run = OptionsOf(rig);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const uint32_t group : {kDecayGroup, kNoDecayGroup}) {
    std::vector<at::Tensor> members;
    for (const ParameterNote& note : ExpertNotes()) {
      if (note.optimizer_group == group) members.push_back(parameters.at(note.name));
    }
    auto options = std::make_unique<torch::optim::AdamWOptions>(run.training.learning_rate);
    options->betas({run.optimizer.beta1, run.optimizer.beta2})
        .eps(run.optimizer.eps)
        .weight_decay(group == kDecayGroup ? run.optimizer.weight_decay : 0);
    groups.emplace_back(members, std::move(options));
  }
  return torch::optim::AdamW(groups);
}

}  // namespace

Result<ExpertResult> TrainExpertsThroughServer(const ExpertRig& rig) {
  ExpertResult result;
  result.planned.resize(kExpertRanks);
  result.moved.resize(kExpertRanks);
  result.evictions.resize(kExpertRanks);
  TP_RETURN_IF_ERROR(RunServedRanks(
      kExpertRanks, {}, [&](const ServedPlace& at) { return ExpertRank(rig, at, &result).Run(); }));
  return result;
}

ExpertResult TrainExpertsPlain(const ExpertRig& rig) {
  at::set_num_threads(1);
  ExpertResult result;
  Parameters parameters;
  std::vector<at::Tensor> all;
  const std::vector<ParameterNote> notes = ExpertNotes();
  for (uint32_t i = 0; i < notes.size(); ++i) {
    at::Tensor made =
        torch::empty(std::vector<int64_t>(notes[i].dims.begin(), notes[i].dims.end()));
    FillWeight(i, {made.mutable_data_ptr<float>(), static_cast<size_t>(made.numel())});
    all.push_back(parameters[notes[i].name] = made.requires_grad_(true));
  }
  torch::optim::AdamW optimizer = OptimizerOf(rig, parameters);
  const double share = 1.0 / (rig.micro_batches * kExpertRanks);
  for (uint64_t step = 0; step < rig.steps; ++step) {
    double loss = 0;
    for (uint32_t micro = 0; micro < rig.micro_batches; ++micro) {
      for (Rank rank = 0; rank < kExpertRanks; ++rank) {
        const at::Tensor value = ExpertLoss(parameters, rank, ExpertBatch(step, micro, rank));
        loss += value.item<double>() * share;
        (value * share).backward();
      }
    }
    result.grad_norms.push_back(torch::nn::utils::clip_grad_norm_(all, rig.clip));
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(loss);
  }
  double loss = 0;
  for (Rank rank = 0; rank < kExpertRanks; ++rank) {
    const torch::NoGradGuard no_grad;
    loss +=
        ExpertLoss(parameters, rank, ExpertBatch(rig.steps, 0, rank)).item<double>() / kExpertRanks;
  }
  result.losses.push_back(loss);
  for (const auto& [name, value] : parameters) {
    result.weights[name].assign(value.const_data_ptr<float>(),
                                value.const_data_ptr<float>() + value.numel());
  }
  return result;
}

}  // namespace tidepool::trainer
