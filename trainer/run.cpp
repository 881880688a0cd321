#include "trainer/run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>
#include <unordered_map>

#include <torch/torch.h>

#include "base/log.h"
#include "base/point.h"
#include "base/units.h"
#include "trainer/data/corpus.h"
#include "trainer/engine.h"
#include "trainer/launch/stop_flag.h"
#include "trainer/model/gpt.h"
#include "trainer/model/gpt_init.h"
#include "trainer/model_config.h"
#include "trainer/run_plan.h"
#include "trainer/run_session.h"
#include "trainer/train_loop.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kDefaultData = "/usr/share/common-licenses";  // text that every Debian carries
constexpr uint64_t kByteVocab = 256;                                // a model of this size reads text byte by byte
constexpr const char* kWeightsFile = "model.safetensors";

std::string JobName(const RunOptions& options, const RankPlace& place) {
  if (!options.job.empty()) return options.job;
  if (!place.job_name.empty()) return place.job_name;
  return JobNameFrom(options.preset + "-" + std::to_string(getpid()));
}

void UseThreads(const RunOptions& options, const RankPlace& place) {
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(options.threads > 0 ? options.threads : std::max(1u, cores / place.local_world)));
}

at::ScalarType TorchType(DType dtype) {
  return dtype == DType::kF32 ? torch::kFloat32 : dtype == DType::kBF16 ? torch::kBFloat16 : torch::kFloat16;
}

// The module's tensors in the order of the layout's ParameterIds.
Result<std::vector<at::Tensor>> TensorsOf(const Gpt& model, const ChunkLayout& layout) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const auto& item : model.named_parameters()) by_name.emplace(item.key(), item.value());
  std::vector<at::Tensor> tensors;
  for (const ParameterPlace& place : layout.parameters) {
    const auto found = by_name.find(place.name);
    if (found == by_name.end()) return Status(ErrorId::kInternal, "the model has no parameter " + place.name);
    tensors.push_back(found->second);
  }
  return tensors;
}

at::Tensor TokensOf(const std::vector<int64_t>& tokens, const Batch& batch) {
  return torch::tensor(tokens, torch::kInt64).view({static_cast<int64_t>(batch.sequences), static_cast<int64_t>(batch.tokens)});
}

Status PrepareDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return Status(ErrorId::kFileWriteFailed, "cannot make the directory " + path + ": " + std::strerror(errno));
}

// One run of one rank, step by step; members appear in the order in which they are made.
class TrainingRun {
 public:
  explicit TrainingRun(const RunOptions& options) : options_(options) {}
  Status All();

 private:
  Status Plan();
  Status Build();
  Status LoadWeights();
  Result<std::vector<Batch>> ReadHeldOut(BatchShape shape);
  Status Train();
  Status Save();
  void Say(const std::string& text) const {
    if (place_.rank == 0 && !options_.quiet) std::cerr << text << std::flush;
  }

  const RunOptions& options_;
  SteadyClock clock_;
  RankPlace place_;
  RunPlan plan_;
  std::optional<Corpus> corpus_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<TrainingEngine> engine_;
  TrainSummary summary_;
};

Status TrainingRun::Plan() {
  TP_ASSIGN_OR_RETURN(place_, DetectRank(ReadEnvironment(), getppid()));
  UseThreads(options_, place_);
  TP_ASSIGN_OR_RETURN(plan_, MakeRunPlan(options_, place_.world, place_.rank, JobName(options_, place_)));
  TP_ASSIGN_OR_RETURN(corpus_, OpenCorpus(options_.data.empty() ? kDefaultData : options_.data, {.vocab = plan_.shape.vocab}));
  Say("tidepool trainer  job " + plan_.spec.name + ", " + std::to_string(place_.world) + (place_.world == 1 ? " rank" : " ranks") +
      " (started by: " + place_.launcher + ")\n" + DescribePlan(plan_) + "data      " + corpus_->description + "\n");
  return {};
}

Status TrainingRun::Build() {
  TP_ASSIGN_OR_RETURN(session_, RunSession::Meet(place_));
  TP_RETURN_IF_ERROR(session_->Attach(options_, plan_.spec, plan_.layout.data_groups));
  Say("server    " + session_->socket_dir() + ", " + FormatBytes(session_->service()->attachment().pool_bytes) +
      " reserved for this job\n");
  // The module's own memory is never touched: LibTorch reserves it, and the engine gives it back when it places the storages.
  model_ = std::make_unique<Gpt>(plan_.shape, torch::TensorOptions().dtype(TorchType(plan_.layout.dtype)));
  model_->SetCheckpointing(options_.activation_checkpointing);
  TP_ASSIGN_OR_RETURN(std::vector<at::Tensor> tensors, TensorsOf(*model_, plan_.layout));
  EngineOptions engine;
  engine.rank = place_.rank;
  engine.micro_batches = options_.micro_batches;
  if (!options_.prefetch) engine.cache.prefetch_depth = 0;
  engine.cache.separate_while_recording = false;  // the model declares which parameters are used several times
  engine.cache.seed = options_.seed;
  EngineParts parts{.service = session_->service(), .groups = session_->groups(), .parameters = std::move(tensors), .clock = &clock_};
  TP_ASSIGN_OR_RETURN(engine_, TrainingEngine::Create(plan_.layout, engine, std::move(parts)));
  return {};
}

Status TrainingRun::LoadWeights() {
  if (session_->service()->attachment().weights_ready) {
    return Status(ErrorId::kJobMismatch, "the server still holds job \"" + plan_.spec.name + "\" at step " +
                                             std::to_string(session_->service()->attachment().sealed_version))
        .Why("its ranks left without an orderly end, and its lease has not passed")
        .Fix("wait for the lease to pass, or choose another --job name");
  }
  return engine_->LoadWeights([this](ParameterId id, std::span<float> values) {
    InitGptParameter(plan_.layout.parameters[id].name, plan_.shape, options_.seed, 0, values);
  });
}

Result<std::vector<Batch>> TrainingRun::ReadHeldOut(BatchShape shape) {
  std::vector<Batch> batches;
  if (options_.eval_every == 0) return batches;
  shape.shuffled = false;
  TP_ASSIGN_OR_RETURN(BatchCursor cursor, BatchCursor::Make(corpus_->validation, shape));
  for (uint64_t i = 0; i < options_.eval_batches; ++i) {
    TP_ASSIGN_OR_RETURN(Batch batch, cursor.Next());
    batches.push_back(std::move(batch));
  }
  return batches;
}

Status TrainingRun::Train() {
  const uint64_t context = options_.context > 0 ? options_.context : plan_.shape.context;
  const BatchShape shape{.sequences = options_.batch, .tokens = context, .rank = place_.rank, .world = place_.world, .seed = options_.seed};
  TP_ASSIGN_OR_RETURN(BatchCursor cursor, BatchCursor::Make(corpus_->train, shape));
  TrainTask task;
  TP_ASSIGN_OR_RETURN(task.held_out, ReadHeldOut(shape));
  TP_ASSIGN_OR_RETURN(ReportWriter reports,
                      ReportWriter::Open(place_.rank == 0 ? options_.out_dir : "", options_.log_every, options_.quiet));
  task.engine = engine_.get();
  task.world = session_->world();
  task.batches = &cursor;
  task.loss = [this](const Batch& batch) { return model_->Loss(TokensOf(batch.inputs, batch), TokensOf(batch.targets, batch)); };
  TP_ASSIGN_OR_RETURN(task.schedule.kind, optim::ScheduleFromName(options_.schedule));
  task.schedule.base_lr = options_.learning_rate;
  task.schedule.min_lr = std::min(options_.min_learning_rate, options_.learning_rate);
  task.schedule.warmup_steps = std::min(options_.warmup_steps, options_.steps);
  task.schedule.total_steps = options_.steps;
  task.loss_scaling = plan_.layout.dtype == DType::kF16;
  task.micro_batches = options_.micro_batches;
  task.steps = options_.steps;
  task.eval_every = options_.eval_every;
  task.reports = place_.rank == 0 ? &reports : nullptr;
  task.stop_wanted = &StopFlag::Requested;
  task.clock = &clock_;
  TP_ASSIGN_OR_RETURN(summary_, TrainLoop(task));
  return {};
}

Status TrainingRun::Save() {
  if (options_.save_dir.empty() || place_.rank != 0) return {};
  TP_RETURN_IF_ERROR(PrepareDirectory(options_.save_dir));
  const UniqueFd directory(open(options_.save_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid())
    return Status(ErrorId::kSaveFailed, "cannot open the directory " + options_.save_dir + ": " + std::strerror(errno));
  TP_RETURN_IF_ERROR(session_->service()->SaveWeights(directory.get(), kWeightsFile, summary_.version));
  TP_RETURN_IF_ERROR(WriteModelConfig(options_.save_dir, {plan_.shape, plan_.shape.vocab == kByteVocab}));
  Say("saved     " + options_.save_dir + "/" + kWeightsFile + " (fp32 weights of step " + std::to_string(summary_.version) + ")\n");
  return {};
}

Status TrainingRun::All() {
  TP_RETURN_IF_ERROR(Plan());
  if (options_.dry_run) {
    if (options_.json && place_.rank == 0) std::cout << PlanJson(plan_) << "\n";
    Say("dry run   nothing was started\n");
    return {};
  }
  if (!options_.out_dir.empty() && place_.rank == 0) TP_RETURN_IF_ERROR(PrepareDirectory(options_.out_dir));
  TP_RETURN_IF_ERROR(Build());
  TP_RETURN_IF_ERROR(LoadWeights());
  TP_RETURN_IF_ERROR(Train());
  TP_RETURN_IF_ERROR(Save());
  Say("done      " + std::to_string(summary_.steps) + " steps in " + FormatDuration(summary_.seconds) +
      (summary_.stopped ? " (stopped by a signal; the last step is sealed)\n" : "\n"));
  return session_->Close();
}

}  // namespace

int RunTraining(const RunOptions& options) {
  ArmPointsFromEnvironment();
  StopFlag::Install();
  Status result;
  {
    TrainingRun run(options);
    result = run.All();
  }
  if (StopFlag::Requested()) return 128 + StopFlag::Signal();
  if (result.ok()) return kExitOk;
  std::cerr << "\n" << result.Format() << "\n";
  return result.exit_code();
}

}  // namespace tidepool::trainer
