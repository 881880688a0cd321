// torch.classes.tidepool.Job: a ModuleJob (trainer/module/module_job.h) for Python.
//
// LibTorch calls methods without the interpreter's lock, on the thread of the Python caller, which
// must be the main thread. An error becomes a RuntimeError with its full text; last_error() has its
// parts.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/version.h>

#include "base/checkpoint/checkpoint_files.h"
#include "base/error_catalog.h"
#include "base/point.h"
#include "base/text/json_writer.h"
#include "python/binding/interrupt_clock.h"
#include "python/binding/profile_class.h"
#include "trainer/engine/torch_errors.h"
#include "trainer/module/module_job.h"
#include "trainer/plan/estimate.h"

namespace tidepool::python {
namespace {

using trainer::CatchTorch;
using trainer::ModuleJob;

std::string ErrorJson(const Status& status) {
  JsonWriter json;
  json.BeginObject();
  json.Field("id", status.ok() ? "" : ErrorEntryOf(status.id()).name);
  json.Field("what", status.what()).Field("where", status.where());
  json.Field("why", status.why()).Field("fix", status.fix()).EndObject();
  return json.Take();
}

std::string PlanJson(const trainer::ModulePlan& plan, uint32_t micro_batches) {
  const trainer::MemoryEstimate memory =
      trainer::EstimateMemory(plan.layout, {.micro_batches = micro_batches,
                                            .rcache_bytes = plan.rcache.bytes,
                                            .optimizer = plan.spec.optimizer});

  JsonWriter json;
  json.BeginObject().Field("parameters", memory.parameters);
  json.Field("chunks", static_cast<uint64_t>(plan.layout.chunks.size()));
  json.Field("chunk_bytes", plan.rcache.block_bytes).Field("blocks", plan.rcache.blocks);
  json.Field("resident_bytes", plan.rcache.resident_bytes);
  json.Field("rcache_bytes", plan.rcache.bytes);
  json.Field("parameter_bytes", plan.layout.ParameterBytes());
  json.Field("padding_bytes", memory.padding_bytes).Field("frozen_bytes", memory.frozen);

  json.Field("master_bytes", memory.master).Field("momentum_bytes", memory.momentum);
  json.Field("variance_bytes", memory.variance).Field("copy_bytes", memory.param16);
  json.Field("gradient_bytes", memory.gradient).Field("host_bytes", memory.pool_bytes);
  return json.EndObject().Take();
}

class Job : public torch::CustomClassHolder {
 public:
  explicit Job(const std::string& settings) {
    InterruptClock::Watch();
    static const bool armed = (ArmPointsFromEnvironment(), true);
    static_cast<void>(armed);
    Result<trainer::ModuleSettings> parsed = trainer::ParseModuleSettings(settings);
    Require(parsed.status());
    micro_batches_ = parsed->run.training.micro_batches;
    job_ = Take(ModuleJob::Make(std::move(parsed).value(), &clock_));
  }

  ~Job() override {
    // A forked child is not part of the job and must not say goodbye for it.
    if (getpid() != owner_) static_cast<void>(job_.release());
  }

  std::string Place() {
    const trainer::RankPlace& place = Here()->place();
    JsonWriter json;
    json.BeginObject().Field("rank", place.rank).Field("world", place.world);
    json.Field("local_rank", place.local_rank).Field("local_world", place.local_world);
    json.Field("launcher", place.launcher).Field("job_name", place.job_name);
    return json.EndObject().Take();
  }

  int64_t AddParameter(const std::string& name, const at::Tensor& tensor, int64_t group,
                       bool multi_use, int64_t unit) {
    return Take(Here()->Add({.name = name,
                             .tensor = tensor,
                             .group = static_cast<uint32_t>(group),
                             .multi_use = multi_use,
                             .unit = static_cast<uint32_t>(unit)}));
  }

  void GiveFrozen(int64_t index, const at::Tensor& values) {
    Require(Here()->GiveFrozen(static_cast<uint32_t>(index), values));
  }

  void Foresee(const c10::intrusive_ptr<Profile>& profile) {
    Require(Here()->Foresee(profile->step()));
  }

  std::string Plan() { return PlanJson(Take(Here()->Plan()), micro_batches_); }

  std::string Open() {
    const trainer::ModuleSlot slot = Take(Here()->Open());
    JsonWriter json;
    json.BeginObject().Field("job", slot.job).Field("socket_dir", slot.socket_dir);
    json.Field("resumed", slot.resumed).Field("version", slot.version);
    json.Field("pool_bytes", slot.pool_bytes).Field("rcache_bytes", slot.rcache_bytes);
    return json.EndObject().Take();
  }

  std::vector<int64_t> PutOrder() {
    const std::vector<uint32_t> order = Here()->PutOrder();
    return {order.begin(), order.end()};
  }
  void Put(int64_t index, const at::Tensor& values) {
    Require(Here()->Put(static_cast<uint32_t>(index), values));
  }
  void Bind() { Require(Here()->Bind()); }

  // numbers: version, optimizer_step, data_cursor, random_state, scaler_steps.
  void BeginAt(const std::vector<int64_t>& numbers, double loss_scale) {
    if (numbers.size() != 5)
      Require(Status(ErrorId::kUsageError, "the step of a checkpoint has five numbers"));

    const auto number = [&numbers](size_t i) { return static_cast<uint64_t>(numbers[i]); };
    Require(Here()->BeginAt({.version = number(0),
                             .optimizer_step = number(1),
                             .data_cursor = number(2),
                             .loss_scale = static_cast<float>(loss_scale),
                             .scaler_steps = static_cast<uint32_t>(number(4)),
                             .random_state = number(3)}));
  }
  std::tuple<std::string, std::vector<int64_t>> MomentsOf(int64_t index) {
    const trainer::ModuleMoments moments = Here()->MomentsOf(static_cast<uint32_t>(index));
    const std::vector<int64_t> planes(moments.planes.begin(), moments.planes.end());
    return {NameOf(moments.form), planes};
  }
  void PutMoment(int64_t index, int64_t plane, const at::Tensor& words) {
    Require(Here()->PutMoment(static_cast<uint32_t>(index), static_cast<uint32_t>(plane), words));
  }
  void BeginCheckpoint(const std::string& folder, int64_t keep, const std::string& program,
                       const std::string& files) {
    trainer::CheckpointOptions options;
    options.dir = folder;
    options.keep = static_cast<uint64_t>(keep);
    Require(Here()->BeginCheckpoint(options, program, files));
  }
  void FinishCheckpoint() { Require(Here()->FinishCheckpoint()); }

  void BeginForward(bool training) { Require(Here()->BeginForward(training)); }
  void Check() { Require(Steps()->Check()); }
  void GradientArrived(int64_t index) { Require(Here()->Arrived(static_cast<uint32_t>(index))); }
  // Which of these units are to be computed, for this rank's counts of tokens: 1 or 0 each.
  std::vector<int64_t> Route(const std::vector<int64_t>& units,
                             const std::vector<int64_t>& counts) {
    Steps();
    std::vector<int64_t> computed(units.size(), 1);
    if (Here()->experts() == nullptr) return computed;
    const std::vector<uint32_t> numbers(units.begin(), units.end());
    const std::vector<bool> used = Take(Here()->experts()->Route(numbers, counts));
    std::copy(used.begin(), used.end(), computed.begin());
    return computed;
  }
  void PassBy(int64_t unit) {
    Steps();
    Require(Here()->experts()->PassBy(static_cast<uint32_t>(unit)));
  }
  int64_t Hold(const std::vector<at::Tensor>& tensors) {
    return static_cast<int64_t>(Take(Steps()->Hold(tensors)));
  }
  void LetGo(int64_t number) {
    if (Here()->steps() != nullptr) Require(Steps()->LetGo(static_cast<uint64_t>(number)));
  }
  // By parameter group: learning rate, weight decay, beta1, beta2 (or the rule's substitutes, see
  // GroupNumbers), eps.
  std::tuple<double, bool, int64_t> Step(const std::vector<std::vector<double>>& groups) {
    std::vector<GroupNumbers> numbers;
    for (const std::vector<double>& group : groups) {
      if (group.size() != 5)
        Require(Status(ErrorId::kUsageError, "a parameter group has five numbers"));

      numbers.push_back({.beta1 = group[2],
                         .beta2 = group[3],
                         .learning_rate = static_cast<float>(group[0]),
                         .weight_decay = static_cast<float>(group[1]),
                         .eps = static_cast<float>(group[4])});
    }
    const client::Outcome sealed = Take(Here()->Step(numbers));
    return {sealed.grad_norm, sealed.skipped, static_cast<int64_t>(sealed.version)};
  }
  void ReportStep(double loss, int64_t tokens) {
    Steps();
    Here()->ReportStep(static_cast<float>(loss), static_cast<uint64_t>(tokens));
  }
  int64_t MicroBatch() { return Steps()->micro_batch(); }
  int64_t SealedVersion() { return static_cast<int64_t>(Steps()->version()); }

  std::string Counters() {
    Steps();
    const trainer::CacheCounters counters = Here()->cache()->counters();
    JsonWriter json;
    json.BeginObject().Field("hits", counters.hits).Field("ahead", counters.ahead);
    json.Field("misses", counters.misses);
    json.Field("prefetches", counters.prefetches).Field("evictions", counters.evictions);
    json.Field("late_prefetches", counters.late_prefetches).Field("submits", counters.submits);
    json.Field("deviations", counters.deviations).Field("wait_ns", counters.wait_ns);
    json.Field("bytes_h2d", counters.bytes_h2d).Field("bytes_d2h", counters.bytes_d2h);
    return json.EndObject().Take();
  }

  void Close() { Require(Here()->Close()); }
  void Leave() { Here()->Leave(); }
  std::string LastError() const { return ErrorJson(last_); }

 private:
  ModuleJob* Here() {
    if (getpid() != owner_) {
      Require(Status(ErrorId::kUsageError, "a forked process uses the job of its parent")
                  .Fix("give workers what they need before, or start them with \"spawn\""));
    }
    return job_.get();
  }
  void Require(const Status& status) {
    InterruptClock::Forget();
    if (status.ok()) return;
    last_ = status;
    throw std::runtime_error(status.Format());
  }
  template <typename Value>
  Value Take(Result<Value> result) {
    Require(result.status());
    return std::move(result).value();
  }
  trainer::OpenSteps* Steps() {
    if (Here()->steps() == nullptr) {
      Require(Status(ErrorId::kUsageError, "the job is not running")
                  .Why("it has not been bound yet, or was closed or left"));
    }
    return Here()->steps();
  }

  const pid_t owner_ = getpid();
  InterruptClock clock_;
  uint32_t micro_batches_ = 1;
  std::unique_ptr<ModuleJob> job_;
  Status last_;
};

std::string Version() {
  return TIDEPOOL_VERSION;
}

// Describes a checkpoint, or the newest whole one of a folder, as JSON: its path, and the step from
// its manifest. An error is returned as JSON too, in the form of last_error().
std::string CheckpointAt(const std::string& path, bool verify) {
  const auto read = [&]() -> Result<std::string> {
    std::string at = path;
    TP_ASSIGN_OR_RETURN(const auto found, FindCheckpoints(path));
    for (const FoundCheckpoint& each : found) {
      if (each.state.ok()) at = each.path;
    }
    if (verify) TP_RETURN_IF_ERROR(VerifyCheckpoint(at));
    TP_ASSIGN_OR_RETURN(const Manifest manifest, OpenCheckpoint(at));
    const CheckpointStep& step = manifest.step;

    JsonWriter json;
    json.BeginObject().Field("path", at).Field("version", step.version);
    json.Field("optimizer_step", step.optimizer_step).Field("data_cursor", step.data_cursor);
    json.Field("random_state", step.random_state).Field("scaler_steps", step.scaler_steps);
    json.Field("loss_scale", step.loss_scale);
    return json.EndObject().Take();
  };

  Result<std::string> json = read();
  return json.ok() ? std::move(json).value() : ErrorJson(json.status());
}

// The torch version that this library was compiled with: its classes differ between minor versions.
std::string TorchVersion() {
  return TORCH_VERSION;
}

}  // namespace

TORCH_LIBRARY(tidepool, library) {
  DefineProfile(&library);  // Job uses it

  library.class_<Job>("Job")
      .def(torch::init<const std::string&>())
      .def("place", &Job::Place)
      .def("add_parameter", &Job::AddParameter)
      .def("give_frozen", &Job::GiveFrozen)
      .def("foresee", &Job::Foresee)

      .def("plan", &Job::Plan)
      .def("open", &Job::Open)
      .def("put_order", &Job::PutOrder)
      .def("put", &Job::Put)
      .def("bind", &Job::Bind)
      .def("begin_at", &Job::BeginAt)
      .def("moments_of", &Job::MomentsOf)
      .def("put_moment", &Job::PutMoment)
      .def("begin_checkpoint", &Job::BeginCheckpoint)
      .def("finish_checkpoint", &Job::FinishCheckpoint)

      .def("begin_forward", &Job::BeginForward)
      .def("check", &Job::Check)
      .def("gradient_arrived", &Job::GradientArrived)
      .def("route", &Job::Route)
      .def("pass_by", &Job::PassBy)
      .def("hold", &Job::Hold)
      .def("let_go", &Job::LetGo)

      .def("step", &Job::Step)
      .def("report_step", &Job::ReportStep)
      .def("micro_batch", &Job::MicroBatch)
      .def("version", &Job::SealedVersion)
      .def("counters", &Job::Counters)
      .def("close", &Job::Close)
      .def("leave", &Job::Leave)
      .def("last_error", &Job::LastError);
  library.def("version() -> str", Version);
  library.def("torch_version() -> str", TorchVersion);
  library.def("checkpoint_at(str path, bool verify) -> str", CheckpointAt);
}

}  // namespace tidepool::python
