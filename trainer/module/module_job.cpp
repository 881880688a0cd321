#include "trainer/module/module_job.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <span>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/formats/crc32c.h"
#include "base/units.h"
#include "trainer/engine/torch_errors.h"
#include "trainer/module/packing.h"
#include "trainer/run/resuming/kept_run.h"
#include "trainer/run/resuming/resume.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kAskNs = 2 * kNsPerSecond;

}  // namespace

Result<std::unique_ptr<ModuleJob>> ModuleJob::Make(ModuleSettings settings, Clock* clock) {
  std::unique_ptr<ModuleJob> job(new ModuleJob(std::move(settings), clock));
  RunOptions& run = job->settings_.run;
  TP_ASSIGN_OR_RETURN(job->place_, DetectRank(ReadEnvironment(), getppid()));
  TP_RETURN_IF_ERROR(WaitsOf(run.job, run.server).status());

  // Without a name the next start could not find the job.
  const bool has_name = !run.job.name.empty() || !job->place_.job_name.empty();
  if (run.job.resume == "auto" && (!has_name || run.server.standalone)) run.job.resume = "never";
  TP_ASSIGN_OR_RETURN(job->resume_, ResumeWanted(run.job, run.server, job->place_));

  run.model.preset = "module";
  job->name_ = JobNameOf(run, job->place_);
  return job;
}

ModuleJob::~ModuleJob() {
  Leave();
}

Status ModuleJob::NotNow(const char* call, const char* before) const {
  return Status(ErrorId::kUsageError, std::string(call) + " was called out of order")
      .Where("job " + name_)
      .Fix(before);
}

Result<uint32_t> ModuleJob::Add(ModuleParameter parameter) {
  if (session_) return NotNow("add_parameter", "add all parameters before the job is opened");
  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(settings_.run.model.dtype));
  TP_RETURN_IF_ERROR(CheckParameter(parameter, dtype));
  if (parameter.group >= settings_.groups.size())
    return BadParameter(parameter.name, "belongs to a parameter group that there is not");

  parameters_.push_back(std::move(parameter));
  return static_cast<uint32_t>(parameters_.size() - 1);
}

Result<ModulePlan> ModuleJob::Plan() const {
  const RunOptions& run = settings_.run;
  const bool trains = std::any_of(
      parameters_.begin(), parameters_.end(),
      [](const ModuleParameter& parameter) { return parameter.tensor.requires_grad(); });
  if (!trains)
    return Status(ErrorId::kUsageError, "the model has no parameter that is trained")
        .Fix("call requires_grad_(True) on those that are to be trained");

  std::vector<ParameterNote> notes;
  for (const ModuleParameter& parameter : parameters_) notes.push_back(NoteOf(parameter));

  LayoutOptions options;
  options.world = place_.world;
  TP_ASSIGN_OR_RETURN(options.dtype, DTypeFromName(run.model.dtype));
  if (run.memory.chunk_size != "auto") {
    TP_ASSIGN_OR_RETURN(options.chunk_bytes, ParseSize(run.memory.chunk_size));
  }

  ModulePlan plan;
  const StepProfile* known = profile_ ? &*profile_ : nullptr;
  const AutoRcache by{known, memory_, held_.rank_rcache_bytes, settings_.optimizer};
  TP_ASSIGN_OR_RETURN(plan.layout, PackModule(notes, {known, held_.parameters}, options));
  if (const char* why = WhyBad(settings_.optimizer, plan.layout.dtype); why != nullptr) {
    return Status(ErrorId::kUsageError, why)
        .Where("optimizer of the job")
        .Why("every trained parameter is " + std::string(NameOf(plan.layout.dtype)))
        .Fix("choose states \"fp32\", or train some parameters in bf16");
  }

  TP_ASSIGN_OR_RETURN(const ModuleWay way, PlanModuleWay(plan.layout, run, place_, by));
  plan.rcache = way.rcache;
  plan.exchange = way.exchange;
  plan.spec = MakeJobSpec(plan.layout, run, plan.rcache, name_);
  plan.spec.optimizer = settings_.optimizer;
  plan.spec.parameter_groups = settings_.groups;
  return plan;
}

Status ModuleJob::Foresee(StepProfile profile) {
  if (session_) return NotNow("foresee", "give a profile before the job is opened");
  if (NotesOf(profile.trace) > parameters_.size())
    return Status(ErrorId::kUsageError, "the profile has more parameters than the job")
        .Fix("add all parameters first, and watch the same ones in the same order");
  memory_ = MemoryToPlan(settings_.run, place_);
  profile_ = std::move(profile);
  return {};
}

Status ModuleJob::GiveFrozen(uint32_t index, at::Tensor values) {
  if (session_) return NotNow("give_frozen", "give values before the job is opened");
  if (index >= parameters_.size() || !IsFrozen(index))
    return Status(ErrorId::kUsageError, "there is no frozen parameter " + std::to_string(index));
  const ModuleParameter& parameter = parameters_[index];
  if (!values.is_cpu() || !values.is_contiguous() || values.sizes() != parameter.tensor.sizes() ||
      values.scalar_type() != parameter.tensor.scalar_type())
    return BadParameter(parameter.name,
                        "is not given dense values of its type and shape in host memory");
  given_[index] = std::move(values);
  return {};
}

// The server names frozen chunks by their content.
Status ModuleJob::NameFrozen() {
  if (plan_->spec.frozen.empty()) return {};
  frozen_ = std::make_unique<FrozenTensors>(plan_->layout);
  for (uint32_t index = 0; index < parameters_.size(); ++index) {
    if (!IsFrozen(index)) continue;
    const auto given = given_.find(index);
    const at::Tensor& values = given != given_.end() ? given->second : parameters_[index].tensor;
    frozen_->Give(plan_->layout.of_note[index], values.to(at::kCPU));
  }

  const std::vector<ContentHash> hashes = frozen_->HashChunks();
  for (size_t i = 0; i < hashes.size(); ++i) plan_->spec.frozen[i].content = hashes[i];
  return {};
}

Status ModuleJob::ProvideFrozen() {
  if (!frozen_) return {};
  const auto read = [this](size_t index, uint64_t begin, std::span<std::byte> bytes) {
    frozen_->Read(index, begin, bytes);
    return Status();
  };
  return session_->ProvideFrozen(read).status();
}

Result<SessionTask> ModuleJob::MakeTask() {
  const RunOptions& run = settings_.run;
  TP_ASSIGN_OR_RETURN(device_, RunDevice::Open(run.device, place_, clock_));
  for (const ModuleParameter& parameter : parameters_) {
    if (parameter.tensor.is_cuda() != device_->is_gpu())
      return BadParameter(parameter.name, "is on " + parameter.tensor.device().str() +
                                              ", and the job's device is " + run.device.name);
  }

  SessionTask task{.server = run.server,
                   .job = run.job,
                   .spec = plan_->spec,
                   .groups = plan_->layout.data_groups};

  task.clock = clock_;
  task.note = settings_.note;
  task.resumes = resume_;
  task.no_server_fix =
      "start one with `memserver run`, name the directory of one that runs (server), or ask for a "
      "private one (standalone)";
  task.routes = plan_->layout.Units() > 0;
  if (!run.output.quiet) {
    task.say = [](const std::string& line) {
      std::cerr << "tidepool: " + line + "\n" << std::flush;
    };
  }

  TP_RETURN_IF_ERROR(device_->MakeRcache(plan_->spec.rcache_bytes));
  task.device = device_->ForSession();
  return task;
}

Status ModuleJob::TakeSlot() {
  TP_RETURN_IF_ERROR(NameFrozen());
  TP_ASSIGN_OR_RETURN(SessionTask task, MakeTask());
  TP_ASSIGN_OR_RETURN(session_, RunSession::Make(place_, std::move(task)));
  if (session_->DoneBefore()) return StartedAgainInVain(name_);
  TP_RETURN_IF_ERROR(session_->Attach());

  const client::Attachment& granted = session_->service()->attachment();
  if (granted.weights_ready && !resume_) return StillHeld(name_, granted.sealed_version);
  if (!granted.weights_ready && resume_) {
    const KeptRun kept(settings_.run, name_);
    TP_RETURN_IF_ERROR(kept.MayBegin(session_->socket_dir(), 0));
  }
  TP_RETURN_IF_ERROR(session_->Meet());
  return ProvideFrozen();
}

// The job may have been packed in another order, by another profile or none: then its order holds.
Status ModuleJob::TakeHeldSlot(Status refused) {
  Result<client::HeldLayout> held = client::AskLayout(session_->socket_dir(), name_, kAskNs);
  if (held.ok()) held_ = std::move(held).value();
  Result<ModulePlan> plan = Plan();
  if (held.ok() && plan.ok() && !PackedAlike(plan->spec, plan_->spec)) {
    session_.reset();
    device_.reset();
    plan_ = std::move(plan).value();
    Status attached = TakeSlot();
    if (attached.id() != ErrorId::kJobMismatch) return attached;
    refused = std::move(attached);
  }

  return std::move(refused).Fix(
      "begin it as before; where only parameters or rcache_bytes differ, that is with the same "
      "example, or with none where it had none");
}

Status ModuleJob::Explained(Status ended) const {
  if (!settings_.run.server.standalone) return ExplainEnd(std::move(ended), name_, resume_);
  return ExplainPrivateEnd(std::move(ended), session_ ? session_->ServerLogTail() : "");
}

Result<ModuleSlot> ModuleJob::Open() {
  if (session_) return NotNow("open", "a job is opened once");
  TP_ASSIGN_OR_RETURN(plan_, Plan());

  Status attached;
  const Status thrown = CatchTorch([&] {
    attached = TakeSlot();
    if (attached.id() == ErrorId::kJobMismatch && resume_)
      attached = TakeHeldSlot(std::move(attached));
  });
  if (attached.ok()) attached = thrown;
  if (!attached.ok()) {
    const Status explained = Explained(std::move(attached));
    session_.reset();
    return explained;
  }

  const client::Attachment& granted = session_->service()->attachment();
  if (!granted.weights_ready) {
    put_ = std::make_unique<WeightPut>(&plan_->layout, place_.rank, session_->service(),
                                       device_->streams());
  }
  return ModuleSlot{.job = name_,
                    .socket_dir = session_->socket_dir(),
                    .resumed = granted.weights_ready,
                    .version = granted.weights_ready ? granted.sealed_version : 0,
                    .pool_bytes = granted.pool_bytes,
                    .rcache_bytes = granted.rcache_bytes};
}

std::vector<uint32_t> ModuleJob::PutOrder() const {
  std::vector<uint32_t> order;
  if (!plan_) return order;
  for (const ParameterPlace& place : plan_->layout.parameters) {
    if (!IsFrozen(place.note)) order.push_back(place.note);
  }
  return order;
}

Status ModuleJob::Put(uint32_t index, const at::Tensor& values) {
  if (!put_) return NotNow("put", "values are put once, into a new job, between open and bind");
  if (index >= parameters_.size() || IsFrozen(index))
    return Status(ErrorId::kUsageError, "there is no trained parameter " + std::to_string(index));
  const ModuleParameter& parameter = parameters_[index];
  if (!values.is_cpu() || values.sizes() != parameter.tensor.sizes() || !values.is_floating_point())
    return BadParameter(parameter.name,
                        "is not given floating-point values of its shape in host memory");

  Status put;
  TP_RETURN_IF_ERROR(CatchTorch([&] {
    const at::NoGradGuard no_grad;
    const at::Tensor whole = values.to(at::kFloat).contiguous();
    const auto* data = whole.const_data_ptr<float>();
    put = put_->Put(plan_->layout.of_note[index], data);
    if (place_.world == 1) return;
    const std::span<const float> elements(data, static_cast<size_t>(whole.numel()));
    initial_[index] = {parameter.name, Crc32c(std::as_bytes(elements))};
  }));
  return put;
}

Status ModuleJob::CheckInitial() {
  if (place_.world == 1) return {};
  std::vector<InitialWeights> weights;
  for (auto& [index, one] : initial_) weights.push_back(std::move(one));
  initial_.clear();
  return CheckSameWeights(session_->world(), weights);
}

Status ModuleJob::Bind() {
  if (!session_ || engine_) return NotNow("bind", "open the job first, and bind once");
  if (put_) {
    TP_RETURN_IF_ERROR(put_->Finish());
    TP_RETURN_IF_ERROR(CheckInitial());
  }
  put_.reset();

  EngineOptions options;
  options.rank = place_.rank;
  options.micro_batches = settings_.run.training.micro_batches;
  // The caller declares parameters that are used more than once.
  options.cache.separate_while_recording = false;
  options.cache.seed = settings_.run.model.seed;
  options.cache.exchange = plan_->exchange;

  EngineParts parts{.service = session_->service(),
                    .groups = session_->groups(),
                    .parameters = {},
                    .clock = clock_};
  for (const ParameterPlace& place : plan_->layout.parameters)
    parts.parameters.push_back(parameters_[place.note].tensor);
  parts.streams = device_->streams();
  parts.gradients = GradientTeller::kCaller;

  const client::Attachment& granted = session_->service()->attachment();
  const Version sealed = granted.weights_ready ? granted.sealed_version : begun_at_;
  TP_ASSIGN_OR_RETURN(engine_, TrainingEngine::Create(plan_->layout, options, std::move(parts)));
  // Ranks whose profiles differ would meet in different collectives: each records its own order.
  if (profile_ && place_.world == 1)
    engine_->Foresee(
        ForeseeOrder(profile_->trace, plan_->layout, place_.rank, options.micro_batches));

  steps_ = engine_->Open(sealed);
  if (plan_->layout.Units() > 0) {
    experts_ = std::make_unique<ModuleExperts>(
        ModuleExpertParts{&plan_->layout, session_.get(), engine_.get(), steps_, clock_});
  }
  frozen_.reset();
  given_.clear();
  if (!cpus_) cpus_ = CpuWatch::Start(static_cast<uint32_t>(at::get_num_threads()), clock_);
  return {};
}

Status ModuleJob::BeginForward(bool training) {
  if (steps_ == nullptr) return NotNow("begin_forward", "bind the job first");
  if (steps_->abandoned() && place_.world == 1) TP_RETURN_IF_ERROR(DropStep());
  return steps_->BeginForward(training);
}

// The server drops a step when a rank leaves without a goodbye.
Status ModuleJob::DropStep() {
  const Version sealed = steps_->version();
  experts_.reset();
  steps_ = nullptr;
  engine_.reset();
  session_->Leave();

  Status attached = session_->Attach();
  if (attached.ok()) attached = session_->Meet();
  if (!attached.ok()) return Explained(std::move(attached));
  const client::Attachment& granted = session_->service()->attachment();
  if (granted.weights_ready && granted.sealed_version == sealed) return Bind();
  return Status(ErrorId::kStatesLost, "the server does not hold step " + std::to_string(sealed) +
                                          " of job " + name_ + " any more");
}

Status ModuleJob::Arrived(uint32_t index) {
  if (steps_ == nullptr || index >= parameters_.size())
    return NotNow("gradient_arrived", "bind the job first");
  return steps_->Arrived(plan_->layout.of_note[index]);
}

Status ModuleJob::Close() {
  if (!session_) return {};
  // A failure was already reported.
  (void)FinishCheckpoint();
  // Operators and transfers work in the memory of the slot.
  experts_.reset();
  steps_ = nullptr;
  engine_.reset();
  put_.reset();
  cpus_.reset();
  Status closed = session_->Close();
  session_.reset();
  return closed;
}

void ModuleJob::Leave() {
  if (session_) (void)FinishCheckpoint();
  cpus_.reset();
  experts_.reset();
  steps_ = nullptr;
  engine_.reset();
  put_.reset();
  if (session_) session_->Leave();
  session_.reset();
}

}  // namespace tidepool::trainer
