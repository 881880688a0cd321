#include "tests/trainer/parity/grouped_reference.h"

#include <barrier>
#include <functional>
#include <map>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "optim/schedule.h"
#include "optim/update_rule.h"
#include "tests/trainer/parity/rig_batches.h"
#include "trainer/model/gpt.h"
#include "trainer/model/gpt_init.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/run/job.h"

namespace tidepool::trainer {
namespace {

// One parameter with its optimizer's states.
struct Master {
  std::string name;
  bool decays = false;
  std::vector<float> weights, momentum, variance, gradient;
};

class GroupedRun {
 public:
  explicit GroupedRun(const RigOptions& options)
      : options_(options),
        world_(options.world),
        meet_(world_),
        counts_(world_),
        out_(world_),
        rows_(world_),
        gradients_(world_),
        losses_(world_) {
    for (const ParameterNote& note : GptParameters(options.shape)) {
      Master& master = masters_.emplace_back();
      master.name = note.name;
      master.decays = note.optimizer_group == kDecayGroup;
      master.weights.resize(
          std::accumulate(note.dims.begin(), note.dims.end(), size_t{1}, std::multiplies<>()));
      InitGptParameter(note.name, options.shape, options.run.model.seed, 0, master.weights);
      master.momentum.resize(master.weights.size());
      master.variance.resize(master.weights.size());
      master.gradient.resize(master.weights.size());
    }
  }

  RigResult Run() {
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < world_; ++rank) ranks.emplace_back([this, rank] { Rank(rank); });
    for (std::thread& rank : ranks) rank.join();
    for (Master& master : masters_) result_.weights[master.name] = std::move(master.weights);
    return result_;
  }

 private:
  TokenMover MoverOf(uint32_t rank) {
    TokenMover mover;
    mover.counts = [this, rank](const std::vector<int64_t>& counts) {
      counts_[rank] = counts;
      meet_.arrive_and_wait();
      std::vector<int64_t> all;
      for (const auto& of_rank : counts_) all.insert(all.end(), of_rank.begin(), of_rank.end());
      meet_.arrive_and_wait();
      return all;
    };

    mover.rows = [this, rank](const at::Tensor& rows, const std::vector<int64_t>& out,
                              const std::vector<int64_t>&) {
      rows_[rank] = rows;
      out_[rank] = out;
      meet_.arrive_and_wait();
      const auto sharing = static_cast<uint32_t>(out.size());
      const size_t place = rank % sharing;
      std::vector<at::Tensor> parts;
      for (uint32_t peer = rank - rank % sharing; parts.size() < sharing; ++peer) {
        const auto begin = out_[peer].begin();
        const int64_t first =
            std::accumulate(begin, begin + static_cast<int64_t>(place), int64_t{0});
        parts.push_back(rows_[peer].narrow(0, first, out_[peer][place]));
      }

      at::Tensor got = at::cat(parts, 0);
      meet_.arrive_and_wait();
      return got;
    };
    return mover;
  }

  void Rank(uint32_t rank) {
    at::set_num_threads(1);
    Gpt model(options_.shape, torch::TensorOptions().dtype(torch::kFloat32), {},
              TokenExchange(rank, MoverOf(rank)));
    InitGpt(&model, options_.run.model.seed);
    const auto named = model.named_parameters();
    BatchCursor cursor = CursorOf(options_, rank, world_);

    for (uint64_t step = 1; step <= options_.run.training.steps; ++step) {
      const Batch batch = cursor.Next().value();
      const at::Tensor loss =
          model.Loss(TokensOf(batch.inputs, batch), TokensOf(batch.targets, batch));
      (loss * (1.0 / world_)).backward();
      losses_[rank] = loss.item<double>();
      for (const Master& master : masters_)
        gradients_[rank][master.name] = named[master.name].grad();

      meet_.arrive_and_wait();
      if (rank == 0) Update(step);
      meet_.arrive_and_wait();

      const torch::NoGradGuard no_grad;
      for (const Master& master : masters_) {
        at::Tensor parameter = named[master.name];
        parameter.copy_(at::from_blob(const_cast<float*>(master.weights.data()), parameter.sizes(),
                                      torch::kFloat32));
        parameter.mutable_grad().reset();
      }
      meet_.arrive_and_wait();
    }
  }

  // The sum over the ranks that have the parameter, from the first on.
  void SumGradient(Master* master) {
    bool is_first = true;
    for (uint32_t rank = 0; rank < world_; ++rank) {
      if (!HasParameter(options_.shape, master->name, rank)) continue;
      const at::Tensor gradient = gradients_[rank].at(master->name).contiguous();
      const float* const values = gradient.const_data_ptr<float>();
      for (size_t i = 0; i < master->gradient.size(); ++i)
        master->gradient[i] = is_first ? values[i] : master->gradient[i] + values[i];
      is_first = false;
    }
  }

  void Update(uint64_t step) {
    const optim::FlushDenormals as_the_server;
    const OptimizerSpec spec = MakeOptimizerSpec(options_.run.optimizer, options_.run.model.seed);
    optim::StepScalars scalars;
    scalars.lr =
        static_cast<float>(optim::LearningRateAt(ScheduleOf(options_.run.training).value(), step));
    scalars.optimizer_step = step;

    for (Master& master : masters_) {
      SumGradient(&master);
      const optim::GroupScalars group{.weight_decay =
                                          master.decays ? options_.run.optimizer.weight_decay : 0};
      optim::UpdateSpan span;
      span.master = master.weights.data();
      span.momentum = master.momentum.data();
      span.variance = master.variance.data();
      span.gradient = master.gradient.data();
      span.count = master.weights.size();
      optim::SelectKernels(optim::IsaLevel::kScalarReference)
          .update(optim::MakeFactors(spec, scalars, group), span);
    }
    result_.losses.push_back(std::accumulate(losses_.begin(), losses_.end(), 0.0) / world_);
  }

  const RigOptions& options_;
  const uint32_t world_;
  std::barrier<> meet_;
  // By rank; written by it alone, read by others between two meetings.
  std::vector<std::vector<int64_t>> counts_, out_;
  std::vector<at::Tensor> rows_;
  std::vector<std::map<std::string, at::Tensor>> gradients_;
  std::vector<double> losses_;
  std::vector<Master> masters_;  // written by rank 0 between two meetings
  RigResult result_;
};

}  // namespace

bool HasParameter(const GptShape& shape, const std::string& name, uint32_t rank) {
  const std::string path = ".block_sparse_moe.experts.";
  const size_t at = name.find(path);
  if (at == std::string::npos) return true;
  const auto expert = static_cast<uint32_t>(std::stoul(name.substr(at + path.size())));
  const MoeSizes moe = MoeOf(shape, GptBlocksOf(name, shape).first);
  return expert / (moe.experts / moe.ep) == rank % moe.ep;
}

RigResult TrainGrouped(const RigOptions& options) {
  EXPECT_TRUE(options.run.model.dtype == "fp32" && options.run.optimizer.clip == 0 &&
              options.run.training.micro_batches == 1);
  return GroupedRun(options).Run();
}

}  // namespace tidepool::trainer
