// A step that goes stage by stage has the bits of one that takes micro-batch after micro-batch
// through the whole model: losses, norms, weights. And it moves what the theory says.
//
// TIDEPOOL_ALL_STAGES: all combinations in place of a covering set.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <ostream>

#include "base/clock.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "trainer/plan/replay.h"
#include "tests/trainer/parity/served_ranks.h"
#include "trainer/pipeline/staged_step.h"
#include "trainer/run/run_device.h"
#include "trainer/run/run_model.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kSteps = 3, kSequences = 2, kTokens = 8;

struct Combination {
  uint32_t stages, micro_batches;
  const char* dtype;
  bool clips = true, recomputes = false;
  // Blocks of the rCache: "25%" gives what two stages need; 0: exactly one stage.
  bool tight = false;
  uint32_t ranks = 1;
  friend std::ostream& operator<<(std::ostream& out, const Combination& c) {
    return out << c.stages << " stages, " << c.micro_batches << " micro-batches, " << c.dtype
               << (c.clips ? ", clipped" : "") << (c.recomputes ? ", recomputed" : "")
               << (c.tight ? ", one stage fits" : "") << ", ranks: " << c.ranks;
  }
};

GptShape Shape() {
  return {.name = "deep", .vocab = 64, .context = 16, .layers = 8, .heads = 2, .hidden = 32};
}

RunOptions OptionsOf(const Combination& c) {
  RunOptions options;
  options.model.dtype = c.dtype;
  options.model.activation_checkpointing = c.recomputes;
  options.data.context = kTokens;
  options.data.batch = kSequences;
  options.training.micro_batches = c.micro_batches;
  options.optimizer.clip = c.clips ? 0.5F : 0.0F;
  options.memory.chunk_size = "16KiB";
  options.device.threads = 1;
  return options;
}

// Stages as equal as can be; the first ones are larger. Ranks take them in turn, the last rank
// first, so that an order that is not the ranks' own is tried.
void Cut(uint32_t stages, uint32_t ranks, RunOptions* options) {
  options->pipeline.stages = std::to_string(stages);
  for (uint32_t stage = 1; stage <= stages; ++stage)
    options->pipeline.ends.push_back((Shape().layers * stage + stages - 1) / stages);
  for (uint32_t stage = 0; stage < stages; ++stage)
    options->pipeline.ranks.push_back(ranks - 1 - stage % ranks);
}

std::vector<Batch> BatchesOf(uint64_t step, uint32_t micro_batches) {
  std::vector<Batch> batches(micro_batches);
  SplitMix64 random(step);
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

struct Outcomes {
  std::vector<double> losses, held_out, norms;
  std::vector<StepTraffic> moved;  // by step
  std::vector<GroupTraffic> planned;
  std::map<std::string, std::vector<float>> weights;
  RunPlan plan;
  AccessSchedule order;         // of a step
  uint64_t chunks_fetched = 0;  // in the last step
  StagedBytes bytes;            // likewise
};

// One rank of a run, or the only one.
class OneRank {
 public:
  OneRank(RunOptions options, const ServedPlace& at, Outcomes* outcomes)
      : options_(std::move(options)), at_(at), outcomes_(outcomes) {}

  Status Run() {
    at::set_num_threads(1);
    TP_ASSIGN_OR_RETURN(plan_,
                        MakeRunPlan(Shape(), options_, at_.place.world, at_.place.rank, "staged"));
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
    const std::vector<Batch> batches = BatchesOf(
        step, plan_.stages ? plan_.stages->micro_batches : options_.training.micro_batches);
    const double factor = 1.0 / static_cast<double>(batches.size());
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
  const ServedPlace& at_;
  Outcomes* const outcomes_;
  SteadyClock clock_;
  RunPlan plan_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<RunModel> model_;
};

// By rank.
std::vector<Outcomes> TrainRanks(const RunOptions& options, uint32_t ranks) {
  std::vector<Outcomes> outcomes(ranks);
  const Status trained = RunServedRanks(ranks, {}, [&](const ServedPlace& at) {
    return OneRank(options, at, &outcomes[at.place.rank]).Run();
  });
  EXPECT_TRUE(trained.ok()) << trained.Format();
  return outcomes;
}

Outcomes Train(const RunOptions& options) {
  return std::move(TrainRanks(options, 1).front());
}

RunOptions Staged(const Combination& c) {
  RunOptions options = OptionsOf(c);
  Cut(c.stages, c.ranks, &options);
  if (c.tight) {
    uint64_t bytes = 0;
    for (Rank rank = 0; rank < c.ranks; ++rank) {
      Result<RunPlan> plan = MakeRunPlan(Shape(), options, c.ranks, rank, "staged");
      bytes = std::max(bytes, plan->layout.RcacheBytes(rank, plan->stages->blocks_of_one) +
                                  plan->stages->tail_bytes);
    }
    options.memory.rcache = std::to_string(bytes);
  }
  return options;
}

// What the ranks of a pipeline did, as one: the last stage's rank has the losses, and rank 0 has
// saved the weights.
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

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSameBits(const Outcomes& is, const Outcomes& should) {
  EXPECT_EQ(is.losses, should.losses);
  EXPECT_EQ(is.held_out, should.held_out);
  EXPECT_EQ(is.norms, should.norms);
  ASSERT_EQ(is.weights.size(), should.weights.size());
  for (const auto& [name, values] : should.weights)
    EXPECT_TRUE(SameBits(is.weights.at(name), values)) << name;
}

// Weights at most twice a step, and each sum of gradients once, whatever the micro-batches.
void ExpectTheory(const Outcomes& outcomes) {
  const ChunkLayout& layout = outcomes.plan.layout;
  uint64_t weights = 0, gradients = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    weights += layout.ChunkBytes(chunk);
    gradients +=
        layout.chunks[chunk].elements *
        (outcomes.plan.stages->micro_batches > 1 ? 4 : BytesOf(layout.chunks[chunk].dtype));
  }
  Result<Plan> plan =
      BeladySimulate(outcomes.order, {EvictableMask(layout), outcomes.plan.rcache.blocks, {}});
  ASSERT_TRUE(plan.ok()) << plan.status().Format();
  for (const uint32_t times : plan->fetches_of_chunk) EXPECT_LE(times, 2U);

  const StagePlan& stages = *outcomes.plan.stages;
  EXPECT_EQ(outcomes.bytes.boundary, uint64_t{stages.stages() - 1} * stages.micro_batches *
                                         kSequences * kTokens * Shape().hidden *
                                         BytesOf(layout.dtype));
  for (uint64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(outcomes.moved[step].bytes_d2h, gradients) << step;
    EXPECT_LE(outcomes.moved[step].bytes_h2d, 2 * weights) << step;
    EXPECT_EQ(outcomes.moved[step].bytes_h2d, outcomes.planned[step].fetched) << step;
    EXPECT_EQ(outcomes.moved[step].bytes_d2h, outcomes.planned[step].handed_in) << step;
  }
}

// Stage s multiplies by s + 2: what is called, in which order, and what is kept.
TEST(StagedStep, GoesThroughAStageForAllMicroBatchesAndKeepsInputsAlone) {
  constexpr uint32_t kStages = 3, kBatches = 2;
  const at::Tensor weight = torch::ones({4}, torch::requires_grad());
  std::vector<std::string> order;
  StagedWork work{.stages = kStages, .micro_batches = kBatches, .gradient_scale = 0.5};
  work.stage = [&](uint32_t stage, uint32_t micro_batch, const at::Tensor& input) {
    const at::Tensor x = stage == 0 ? weight * static_cast<double>(micro_batch + 1) : input;
    const at::Tensor y = x * static_cast<double>(stage + 2);
    return stage + 1 == kStages ? y.sum() : y;
  };
  work.begins = [&](bool backward, uint32_t stage, uint32_t micro_batch) {
    order.push_back((backward ? "b" : "f") + std::to_string(stage) + "." +
                    std::to_string(micro_batch));
  };
  work.ended = [&](uint32_t stage) { order.push_back("end " + std::to_string(stage)); };

  const StagedResult result = RunStagedStep(work);
  EXPECT_EQ(order,
            (std::vector<std::string>{"f0.0", "f0.1", "f1.0", "f1.1", "b2.0", "b2.1", "end 2",
                                      "b1.0", "b1.1", "end 1", "b0.0", "b0.1", "end 0"}));
  ASSERT_EQ(result.losses.size(), kBatches);
  EXPECT_EQ(result.losses[1].item<float>(), 2 * 4 * 2 * 3 * 4);
  EXPECT_EQ(weight.grad()[0].item<float>(), (1 + 2) * 2 * 3 * 4 * 0.5);
  EXPECT_EQ(result.boundary_bytes, (kStages - 1) * kBatches * 4 * sizeof(float));

  order.clear();
  work.goes_on = [&] { return order.size() < 3; };
  RunStagedStep(work);
  EXPECT_EQ(order.size(), 3U) << "a step that has failed computes nothing more";
}

TEST(StageLinks, JoinRanksWhoseStagesFollowEachOtherAndTheEnds) {
  const auto names = [](const StageCuts& cuts) {
    std::vector<std::string> all;
    for (const LinkSpec& link : LinksOf(cuts)) {
      EXPECT_TRUE(
          link.name.ends_with(std::to_string(link.from) + " to " + std::to_string(link.to)));
      all.push_back(link.name);
    }
    return all;
  };
  EXPECT_TRUE(names({.ends = {1, 2, 3}, .ranks = {}}).empty());
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({.ends = {1, 2, 3}, .ranks = {1, 0, 1}}),
            (Names{"stages 1 to 0", "stages 0 to 1"}))
      << "rank 1 has both ends of the model";
  EXPECT_EQ(names({.ends = {1, 2, 3}, .ranks = {2, 0, 1}}),
            (Names{"stages 2 to 0", "stages 0 to 2", "stages 0 to 1", "stages 1 to 0",
                   "ends 2 to 1", "ends 1 to 2"}));
}

std::vector<Combination> Combinations() {
  if (std::getenv("TIDEPOOL_ALL_STAGES") == nullptr) {
    // Each pair of values of two columns occurs.
    return {{1, 2, "fp32", false, true},      {2, 1, "bf16", true, true, true},
            {2, 4, "bf16", false, false},     {3, 3, "fp32", true, false, true},
            {4, 2, "bf16", true, true, true}, {5, 4, "fp32", true, true},
            {8, 1, "fp32", false, false},     {8, 3, "bf16", false, true, true},
            {2, 2, "fp16", true, false, true}};
  }
  std::vector<Combination> all;
  for (uint32_t stages = 1; stages <= 8; ++stages) {
    for (uint32_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
      for (const char* dtype : {"fp32", "bf16", "fp16"}) {
        for (uint32_t bits = 0; bits < 8; ++bits)
          all.push_back(
              {stages, micro_batches, dtype, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
      }
    }
  }
  return all;
}

TEST(StagedRun, HasTheBitsOfOneMicroBatchAfterTheOtherAndMovesWhatTheTheorySays) {
  for (const Combination& each : Combinations()) {
    SCOPED_TRACE(::testing::PrintToString(each));
    const Outcomes staged = Train(Staged(each));
    ASSERT_EQ(staged.losses.size(), kSteps * each.micro_batches);
    ExpectSameBits(staged, Train(OptionsOf(each)));
    ExpectTheory(staged);
    if (HasFailure()) return;
  }
}

std::vector<Combination> CombinationsOfRanks() {
  if (std::getenv("TIDEPOOL_ALL_STAGES") == nullptr) {
    return {{2, 1, "fp32", true, false, false, 2}, {3, 4, "bf16", true, true, true, 2},
            {3, 3, "bf16", true, false, false, 3}, {5, 2, "bf16", false, true, true, 3},
            {4, 4, "fp32", false, true, true, 4},  {8, 3, "bf16", true, false, true, 4},
            {8, 2, "fp32", true, true, false, 2}};
  }
  std::vector<Combination> all;
  for (uint32_t stages = 2; stages <= 8; ++stages) {
    for (uint32_t ranks = 2; ranks <= std::min(stages, 4U); ++ranks) {
      for (uint32_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
        for (const char* dtype : {"fp32", "bf16"}) {
          for (uint32_t bits = 0; bits < 8; ++bits)
            all.push_back({stages, micro_batches, dtype, (bits & 1) != 0, (bits & 2) != 0,
                           (bits & 4) != 0, ranks});
        }
      }
    }
  }
  return all;
}

// Each rank moves what its plan says, and all together what one rank would; between them go all
// boundary tensors, there and back, since neighbouring stages are on two ranks.
void ExpectTheoryOfRanks(const std::vector<Outcomes>& ranks) {
  const ChunkLayout& layout = ranks.front().plan.layout;
  const StagePlan& plan = *ranks.front().plan.stages;
  uint64_t handed_in = 0, fetched = 0, sums = 0, boundary = 0, linked = 0;
  for (const Outcomes& rank : ranks) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(rank.moved[step].bytes_h2d, rank.planned[step].fetched) << step;
      EXPECT_EQ(rank.moved[step].bytes_d2h, rank.planned[step].handed_in) << step;
    }
    fetched += rank.moved.back().bytes_h2d;
    handed_in += rank.moved.back().bytes_d2h;
    boundary += rank.bytes.boundary;
    linked += rank.bytes.linked;
    EXPECT_EQ(rank.bytes.linked, rank.bytes.linked_theory);
  }

  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
    sums += layout.chunks[chunk].elements * BytesOf(plan.SumType(layout, chunk));
  EXPECT_EQ(handed_in, sums);
  EXPECT_LE(fetched, 2 * layout.TotalBytes());
  const uint64_t element = BytesOf(layout.dtype);
  EXPECT_EQ(boundary, uint64_t{plan.stages() - 1} * plan.micro_batches * kSequences * kTokens *
                          Shape().hidden * element);
  const bool apart = plan.cuts.RankOf(0) != plan.cuts.RankOf(plan.stages() - 1);
  EXPECT_EQ(linked,
            2 * boundary +
                (apart ? (1 + plan.micro_batches) * Shape().vocab * Shape().hidden * element : 0));
}

TEST(StagedRun, SeveralRanksHaveTheBitsOfOneProcess) {
  for (const Combination& each : CombinationsOfRanks()) {
    SCOPED_TRACE(::testing::PrintToString(each));
    const std::vector<Outcomes> ranks = TrainRanks(Staged(each), each.ranks);
    const Outcomes staged = AsOne(ranks);
    ASSERT_EQ(staged.losses.size(), kSteps * each.micro_batches);
    ExpectSameBits(staged, Train(OptionsOf(each)));
    ExpectTheoryOfRanks(ranks);
    if (HasFailure()) return;
  }
}

// Where one stage fills the rCache: forward fetches all stages, backward all but the last, which is
// still there; what is always resident comes once.
TEST(StagedRun, FetchesAChunkOncePerVisitOfItsStage) {
  const Outcomes outcomes = Train(Staged({8, 4, "fp32", true, false, true}));
  const ChunkLayout& layout = outcomes.plan.layout;
  const StagePlan& stages = *outcomes.plan.stages;
  uint64_t visits = 0, at_the_turn = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    const bool turns = stages.of_chunk[chunk].last + 1 == stages.stages();
    visits += layout.chunks[chunk].resident || turns ? 1 : 2;
    at_the_turn += !layout.chunks[chunk].resident && turns;
  }
  // The turn may leave room for some of the stage before, which then are not fetched again.
  const uint64_t kept = outcomes.plan.rcache.blocks - at_the_turn;
  EXPECT_LE(outcomes.chunks_fetched, visits);
  EXPECT_GE(outcomes.chunks_fetched + kept, visits);

  const Outcomes ordinary = Train([] {
    RunOptions options = OptionsOf({8, 4, "fp32"});
    options.memory.rcache = "12%";
    return options;
  }());
  EXPECT_GT(ordinary.moved[1].bytes_h2d, 3 * outcomes.moved[1].bytes_h2d)
      << "a chunk comes twice a step, and not twice a micro-batch";
}

}  // namespace
}  // namespace tidepool::trainer
