#include "tests/trainer/pipeline/staged_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "tests/trainer/parity/served_ranks.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/run/run_device.h"
#include "trainer/run/run_model.h"

namespace tidepool::trainer {

GptShape Shape(Form form) {
  GptShape shape = {
      .name = "deep", .vocab = 64, .context = 16, .layers = 8, .heads = 2, .hidden = 32};
  if (form == Form::kGpt2) return shape;
  shape.form = ModelForm::kLlama;
  shape.llama = {.kv_heads = 1, .head_size = 16, .mlp = 64, .tied = form == Form::kTiedLlama};
  return shape;
}

RunOptions OptionsOf(const Combination& c) {
  RunOptions options;
  options.model.dtype = c.dtype;
  options.model.activation_checkpointing = c.recomputes;
  options.data.context = kTokens;
  options.data.batch = kSequences * c.columns;
  options.training.micro_batches = c.micro_batches;
  options.optimizer.clip = c.clips ? 0.5F : 0.0F;
  options.memory.chunk_size = "16KiB";
  options.device.threads = 1;
  return options;
}

void Cut(uint32_t stages, uint32_t ranks, RunOptions* options) {
  options->pipeline.stages = std::to_string(stages);
  for (uint32_t stage = 1; stage <= stages; ++stage)
    options->pipeline.ends.push_back((Shape().layers * stage + stages - 1) / stages);
  for (uint32_t stage = 0; stage < stages; ++stage)
    options->pipeline.ranks.push_back(ranks - 1 - stage % ranks);
}

std::vector<Batch> BatchesOf(uint64_t step, uint32_t micro_batches, uint32_t column) {
  std::vector<Batch> batches(micro_batches);
  SplitMix64 random(step + uint64_t{1000} * column);
  for (Batch& batch : batches) {
    batch.sequences = kSequences;
    batch.tokens = kTokens;
    for (uint64_t i = 0; i < kSequences * kTokens; ++i) {
      batch.inputs.push_back(static_cast<int64_t>(random.Below(64)));
      batch.targets.push_back(static_cast<int64_t>(random.Below(64)));
    }
  }
  return batches;
}

namespace {

// One rank of a run, or the only one.
class OneRank {
 public:
  OneRank(RunOptions options, GptShape shape, const ServedPlace& at, Outcomes* outcomes)
      : options_(std::move(options)), shape_(std::move(shape)), at_(at), outcomes_(outcomes) {}

  Status Run() {
    at::set_num_threads(1);
    TP_ASSIGN_OR_RETURN(plan_,
                        MakeRunPlan(shape_, options_, at_.place.world, at_.place.rank, "staged"));
    SessionTask task{.server = options_.server,
                     .job = options_.job,
                     .spec = plan_.spec,
                     .groups = plan_.layout.data_groups};
    if (plan_.stages) task.links = LinksOf(plan_.stages->cuts);
    TP_ASSIGN_OR_RETURN(session_, at_.Open(std::move(task)));
    TP_ASSIGN_OR_RETURN(const auto device, RunDevice::Open(options_.device, at_.place, &clock_));
    TP_RETURN_IF_ERROR(Make(device.get()));
    TP_RETURN_IF_ERROR(model_->LoadWeights());
    TP_RETURN_IF_ERROR(Evaluate(0));
    for (uint64_t step = 0; step < kSteps; ++step) TP_RETURN_IF_ERROR(Step(step));
    TP_RETURN_IF_ERROR(Evaluate(kSteps));
    if (at_.place.rank == 0) TP_RETURN_IF_ERROR(Save());
    outcomes_->plan = plan_;
    outcomes_->order = model_->engine()->cache().schedule(PassKind::kTrain);
    model_.reset();
    return session_->Close();
  }

 private:
  // Ranks are threads here, and one that profiles has LibTorch for itself.
  Status Make(RunDevice* device) {
    static std::mutex alone;
    TP_RETURN_IF_ERROR(session_->world()->Barrier());
    {
      const std::lock_guard lock(alone);
      TP_ASSIGN_OR_RETURN(model_, RunModel::Make({.options = options_,
                                                  .plan = plan_,
                                                  .device = device,
                                                  .session = session_.get(),
                                                  .clock = &clock_}));
    }
    return session_->world()->Barrier();
  }

  Status Step(uint64_t step) {
    const CacheCounters before = model_->engine()->cache().counters();
    const std::vector<Batch> batches =
        BatchesOf(step, options_.training.micro_batches,
                  ColumnOfRank(options_, at_.place.world, at_.place.rank));
    const double factor =
        1.0 / static_cast<double>(batches.size() * ColumnsOf(options_, at_.place.world));
    if (plan_.stages) {
      TP_ASSIGN_OR_RETURN(outcomes_->bytes, model_->StagedStep(step, batches, factor));
    } else {
      for (uint32_t i = 0; i < batches.size(); ++i)
        TP_RETURN_IF_ERROR(model_->engine()->RunMicroBatch(
            step, i, [&] { return model_->Loss(batches[i]); }, factor));
    }
    TP_ASSIGN_OR_RETURN(const std::vector<double> losses, model_->engine()->TakeLosses());
    outcomes_->losses.insert(outcomes_->losses.end(), losses.begin(), losses.end());
    TP_ASSIGN_OR_RETURN(const client::Outcome sealed,
                        model_->engine()->EndStep({.version = step, .learning_rate = 0.01F}));
    outcomes_->norms.push_back(sealed.grad_norm);

    const CacheCounters now = model_->engine()->cache().counters();
    outcomes_->moved.push_back(
        {now.bytes_h2d - before.bytes_h2d, now.bytes_d2h - before.bytes_d2h});
    outcomes_->planned.push_back(SumOf(model_->engine()->planned_traffic()));
    EXPECT_TRUE(SumOf(Difference(now.traffic, before.traffic)) == outcomes_->planned.back() ||
                !plan_.stages)
        << "bytes between ranks, too, are those of the plan";
    outcomes_->chunks_fetched = now.misses + now.prefetches - before.misses - before.prefetches;
    return {};
  }

  // Two batches: the second one finds the token embedding of this version at the last stage.
  Status Evaluate(Version version) {
    for (const Batch& batch : BatchesOf(kSteps, 2)) {
      TP_ASSIGN_OR_RETURN(const double loss,
                          model_->engine()->Evaluate(version, [&] { return model_->Loss(batch); }));
      outcomes_->held_out.push_back(loss);
    }
    return {};
  }

  Status Save() {
    const UniqueFd directory(open(at_.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    TP_RETURN_IF_ERROR(
        session_->service()->SaveWeights(directory.get(), "weights.safetensors", kSteps));
    outcomes_->weights = ReadWeights(at_.directory + "/weights.safetensors");
    return {};
  }

  const RunOptions options_;
  const GptShape shape_;
  const ServedPlace& at_;
  Outcomes* const outcomes_;
  SteadyClock clock_;
  RunPlan plan_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<RunModel> model_;
};

}  // namespace

std::vector<Outcomes> TrainRanks(const RunOptions& options, uint32_t ranks, const GptShape& shape) {
  std::vector<Outcomes> outcomes(ranks);
  const Status trained = RunServedRanks(ranks, {}, [&](const ServedPlace& at) {
    return OneRank(options, shape, at, &outcomes[at.place.rank]).Run();
  });
  EXPECT_TRUE(trained.ok()) << trained.Format();
  return outcomes;
}

Outcomes Train(const RunOptions& options, const GptShape& shape) {
  return std::move(TrainRanks(options, 1, shape).front());
}

RunOptions Staged(const Combination& c) {
  RunOptions options = OptionsOf(c);
  Cut(c.stages, c.ranks, &options);
  options.pipeline.columns = c.columns;
  if (c.tight) {
    uint64_t bytes = 0;
    for (Rank rank = 0; rank < c.ranks; ++rank) {
      Result<RunPlan> plan =
          MakeRunPlan(Shape(c.form), options, c.ranks * c.columns, rank, "staged");
      bytes = std::max(bytes, plan->layout.RcacheBytes(rank, plan->stages->blocks_of_one) +
                                  plan->stages->tail_bytes);
    }
    options.memory.rcache = std::to_string(bytes);
  }
  return options;
}

Outcomes AsOne(const std::vector<Outcomes>& ranks) {
  Outcomes all = ranks.front();
  all.losses.clear();
  all.held_out.assign(all.held_out.size(), 0);
  for (const Outcomes& rank : ranks) {
    all.losses.insert(all.losses.end(), rank.losses.begin(), rank.losses.end());
    for (size_t i = 0; i < rank.held_out.size(); ++i) all.held_out[i] += rank.held_out[i];
    EXPECT_EQ(rank.norms, all.norms);
  }
  return all;
}

namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

void ExpectSameBits(const Outcomes& is, const Outcomes& should) {
  EXPECT_EQ(is.losses, should.losses);
  EXPECT_EQ(is.held_out, should.held_out);
  EXPECT_EQ(is.norms, should.norms);
  ASSERT_EQ(is.weights.size(), should.weights.size());
  for (const auto& [name, values] : should.weights)
    EXPECT_TRUE(SameBits(is.weights.at(name), values)) << name;
}

}  // namespace tidepool::trainer
