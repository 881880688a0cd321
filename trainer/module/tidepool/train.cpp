#include "trainer/module/tidepool/train.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "base/text/error_text.h"
#include "base/text/json_writer.h"
#include "trainer/engine/torch_errors.h"
#include "trainer/module/module_job.h"
#include "trainer/module/module_tensors.h"
#include "trainer/run/run_device.h"

namespace tidepool {
namespace {

using trainer::CatchTorch;
using trainer::ModuleJob;
using trainer::ModuleTensors;

[[noreturn]] void Throw(const Status& status) {
  const ErrorEntry& entry = ErrorEntryOf(status.id());
  throw Error(ErrorText(status), {.id = entry.name,
                                  .sentence = status.what(),
                                  .where = status.where(),
                                  .why = status.why(),
                                  .fix = status.fix().empty() ? entry.advice : status.fix()});
}

void Require(const Status& status) {
  if (!status.ok()) Throw(status);
}

template <typename Value>
Value Take(Result<Value> result) {
  Require(result.status());
  return std::move(result).value();
}

// The memserver in TIDEPOOL_BIN of the environment, or in the library's installation; empty: the
// usual search for a private server.
std::string MemserverBesideLibrary() {
  std::vector<std::string> folders;
  if (const char* named = std::getenv("TIDEPOOL_BIN"); named != nullptr) folders.push_back(named);
  Dl_info about{};
  if (dladdr(reinterpret_cast<const void*>(&Train), &about) != 0 && about.dli_fname != nullptr) {
    std::string folder = about.dli_fname;
    folder.resize(std::min(folder.rfind('/'), folder.size()));
    // From lib, or from lib/x86_64-linux-gnu.
    folders.push_back(folder + "/../bin");
    folders.push_back(folder + "/../../bin");
  }

  for (const std::string& folder : folders) {
    std::string program = folder + "/memserver";
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

void AddOptimizer(const TrainOptions& options, JsonWriter* json) {
  json->Key("optimizer").BeginObject();
  json->Field("rule", options.optimizer).Field("states", options.states);
  json->Field("beta1", options.beta1).Field("beta2", options.beta2).Field("eps", options.eps);
  json->Field("momentum", options.momentum).Field("dampening", options.dampening);
  json->Field("nesterov", options.nesterov).Field("lr_decay", options.lr_decay).EndObject();

  json->Key("parameter_groups").BeginArray();
  json->BeginArray().Double(1).Double(options.weight_decay).EndArray();
  for (const ParameterGroup& group : options.groups)
    json->BeginArray().Double(group.learning_rate_factor).Double(group.weight_decay).EndArray();
  json->EndArray();
}

// The job's settings; ParseModuleSettings checks them.
std::string SettingsJson(const TrainOptions& options, const std::string& dtype) {
  const bool or_new = options.or_new && options.resume == "auto" && !options.standalone;
  const std::string memserver =
      options.memserver.empty() ? MemserverBesideLibrary() : options.memserver;

  JsonWriter json;
  json.BeginObject().Field("job", options.job).Field("resume", options.resume);
  json.Field("or_new", or_new).Field("socket_dir", options.socket_dir);
  json.Field("standalone", options.standalone).Field("memserver", memserver);
  json.Field("pool", options.standalone ? options.pool : "");
  json.Field("server_timeout", options.server_timeout);
  json.Field("queue_timeout", options.queue_timeout);
  json.Field("rejoin_timeout", options.rejoin_timeout);

  json.Field("dtype", dtype).Field("rcache", options.rcache);
  json.Field("chunk_size", options.chunk_size).Field("device", options.device);
  json.Field("micro_batches", options.micro_batches).Field("seed", options.seed);
  json.Field("max_grad_norm", options.max_grad_norm).Field("quiet", options.quiet);
  AddOptimizer(options, &json);
  return json.EndObject().Take();
}

Result<c10::Device> DeviceOf(const std::string& name, uint32_t local_rank) {
  if (name == "cpu") return c10::Device(at::kCPU);

  const bool is_any = name == "cuda";
  const std::string number = name.starts_with("cuda:") ? name.substr(5) : "";
  const bool is_number = !number.empty() && number.size() <= 3 &&
                         number.find_first_not_of("0123456789") == std::string::npos;
  if (!is_any && !is_number) {
    return Status(ErrorId::kUsageError, "device \"" + name + "\" is not known")
        .Where("TrainOptions::device")
        .Fix("give \"cpu\", \"cuda\" or \"cuda:N\"");
  }

  TP_RETURN_IF_ERROR(trainer::LoadTorchCuda());
  const int index = is_any ? static_cast<int>(local_rank) : std::stoi(number);
  return c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace

Error::Error(const std::string& text, Parts parts)
    : std::runtime_error(text), parts_(std::make_shared<const Parts>(std::move(parts))) {}
Error::~Error() = default;

// The job, and what it has changed in this process.
struct __attribute__((visibility("hidden"))) Training::State {
  // Tells the job that LibTorch has accumulated a gradient.
  struct GradientArrived final : torch::autograd::PostAccumulateGradHook {
    GradientArrived(ModuleJob* to, uint32_t of) : job(to), index(of) {}
    void operator()(const at::Tensor&) override { Require(job->Arrived(index)); }
    ModuleJob* job;
    uint32_t index;
  };

  Status Begin(torch::nn::Module& module, const TrainOptions& options);
  Status AddParameters(const TrainOptions& options);
  Status PutValues();
  Status CheckHooks() const;
  void InstallHooks();
  void RemoveHooks();
  void MoveBuffers(torch::nn::Module& module) const;

  const pid_t owner = getpid();
  SteadyClock clock;
  ModuleTensors tensors;
  c10::Device device{at::kCPU};
  OptimizerSpec rule;              // as the job began
  std::unique_ptr<ModuleJob> job;  // numbers parameters as in `tensors`
  trainer::ModuleSlot slot;
  bool kept = false;     // a later start can continue it
  bool running = false;  // hooks are installed
  bool threads_were_on = false;
};

Status Training::State::Begin(torch::nn::Module& module, const TrainOptions& options) {
  TP_RETURN_IF_ERROR(tensors.Collect(module, options.multi_use));
  TP_RETURN_IF_ERROR(CheckHooks());
  TP_RETURN_IF_ERROR(tensors.KeepF32(options.keep_fp32));
  const std::string dtype = options.dtype.empty() ? tensors.DTypeName() : options.dtype;
  TP_ASSIGN_OR_RETURN(trainer::ModuleSettings settings,
                      trainer::ParseModuleSettings(SettingsJson(options, dtype)));
  rule = settings.optimizer;
  TP_ASSIGN_OR_RETURN(job, ModuleJob::Make(std::move(settings), &clock));

  TP_ASSIGN_OR_RETURN(device, DeviceOf(options.device, job->place().local_rank));
  std::optional<c10::ScalarType> converted;
  if (!options.dtype.empty()) converted = dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  TP_RETURN_IF_ERROR(tensors.Place(converted, device));
  TP_RETURN_IF_ERROR(AddParameters(options));
  TP_ASSIGN_OR_RETURN(slot, job->Open());
  if (!slot.resumed) TP_RETURN_IF_ERROR(PutValues());
  TP_RETURN_IF_ERROR(job->Bind());

  tensors.Keep();
  MoveBuffers(module);
  kept = options.resume == "auto" && (!options.job.empty() || job->place().world > 1) &&
         !options.standalone;
  InstallHooks();
  return {};
}

Status Training::State::AddParameters(const TrainOptions& options) {
  std::vector<uint32_t> group_of(tensors.parameters().size(), 0);
  for (size_t group = 0; group < options.groups.size(); ++group) {
    for (const std::string& name : options.groups[group].names) {
      TP_ASSIGN_OR_RETURN(const uint32_t index, tensors.IndexOf(name));
      group_of[index] = static_cast<uint32_t>(group + 1);
    }
  }

  for (uint32_t index = 0; index < group_of.size(); ++index) {
    const ModuleTensors::Parameter& parameter = tensors.parameters()[index];
    TP_RETURN_IF_ERROR(job->Add({.name = parameter.name,
                                 .tensor = parameter.tensor,
                                 .group = group_of[index],
                                 .multi_use = parameter.multi_use})
                           .status());

    if (parameter.tensor.requires_grad() || !parameter.former.defined()) continue;
    TP_RETURN_IF_ERROR(
        job->GiveFrozen(index, tensors.InitialValues(index).to(parameter.tensor.scalar_type())));
  }
  return {};
}

Status Training::State::PutValues() {
  for (const uint32_t index : job->PutOrder())
    TP_RETURN_IF_ERROR(job->Put(index, tensors.InitialValues(index)));
  return {};
}

// LibTorch allows one such hook per tensor.
Status Training::State::CheckHooks() const {
  for (const ModuleTensors::Parameter& parameter : tensors.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    if (torch::autograd::impl::post_acc_grad_hooks(parameter.tensor) == nullptr) continue;
    return Status(ErrorId::kUsageError,
                  "the parameter " + parameter.name + " has a post-accumulate-grad hook")
        .Where(parameter.name)
        .Why("LibTorch has room for one such hook a tensor, and the job needs it")
        .Fix("use Tensor::register_hook");
  }
  return {};
}

void Training::State::InstallHooks() {
  const auto& parameters = tensors.parameters();
  for (uint32_t index = 0; index < parameters.size(); ++index) {
    if (!parameters[index].tensor.requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters[index].tensor, std::make_unique<GradientArrived>(job.get(), index));
  }

  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  threads_were_on = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
  running = true;
}

void Training::State::RemoveHooks() {
  if (!running) return;
  running = false;
  for (const ModuleTensors::Parameter& parameter : tensors.parameters()) {
    if (parameter.tensor.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
  }
  c10::AutogradState::get_tls_state().set_multithreading_enabled(threads_were_on);
}

void Training::State::MoveBuffers(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  for (at::Tensor& buffer : module.buffers()) {
    if (buffer.defined() && buffer.device() != device) buffer.set_data(buffer.to(device));
  }
}

Training::Training(std::unique_ptr<State> state) : state_(std::move(state)) {}
Training::Training(Training&&) noexcept = default;
// The assignment ends this object's former job.
Training& Training::operator=(Training&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Training::~Training() {
  if (state_ == nullptr) return;
  // A forked child is not part of the job and must not say goodbye for it.
  if (getpid() != state_->owner) {
    static_cast<void>(state_.release());
    return;
  }
  try {
    state_->kept ? Leave() : Close();
  } catch (const std::exception&) {
    state_->job.reset();  // as Leave
  }
}

Training::State& Training::Running(const char* call) const {
  if (state_ != nullptr && state_->running && getpid() == state_->owner) return *state_;
  Throw(
      Status(ErrorId::kUsageError, std::string(call) + " was called on a job that does not run")
          .Why("it was closed, left or moved from, or belongs to the process that forked this one")
          .Fix("call Train again, on a new module"));
}

bool Training::resumed() const {
  return Running("resumed").slot.resumed;
}
uint64_t Training::sealed_steps() const {
  return Running("sealed_steps").job->steps()->version();
}
uint32_t Training::rank() const {
  return Running("rank").job->place().rank;
}
uint32_t Training::world() const {
  return Running("world").job->place().world;
}
const std::string& Training::job() const {
  return Running("job").slot.job;
}
const std::string& Training::socket_dir() const {
  return Running("socket_dir").slot.socket_dir;
}

void Training::BeginForward(bool training) {
  Require(Running("BeginForward").job->BeginForward(training));
}

StepResult Training::Step(double learning_rate) {
  State& state = Running("Step");
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    Throw(Status(ErrorId::kUsageError, "the learning rate is not a finite number from 0")
              .Where("Training::Step"));
  }
  const client::Outcome sealed = Take(state.job->Step(learning_rate));
  return {sealed.grad_norm, sealed.skipped, sealed.version};
}

StepResult Training::Step(const std::vector<GroupStep>& groups) {
  State& state = Running("Step");
  std::vector<GroupNumbers> numbers;
  for (const GroupStep& group : groups) {
    OptimizerSpec rule = state.rule;
    rule.beta1 = group.beta1;
    rule.beta2 = group.beta2;
    rule.eps = group.eps;
    rule.momentum = group.momentum;
    rule.dampening = group.dampening;
    rule.lr_decay = group.lr_decay;

    numbers.push_back(NumbersOf(rule, static_cast<float>(group.learning_rate),
                                static_cast<float>(group.weight_decay)));
  }
  const client::Outcome sealed = Take(state.job->Step(numbers));
  return {sealed.grad_norm, sealed.skipped, sealed.version};
}

at::Tensor Training::Weights(const std::string& name) {
  State& state = Running("Weights");
  const uint32_t index = Take(state.tensors.IndexOf(name));
  if (state.job->steps()->micro_batch() > 0) {
    Throw(Status(ErrorId::kUsageError, "Weights was called within a step")
              .Why("behind backward, gradients lie over the parameters")
              .Fix("call Step first"));
  }

  at::Tensor copy;
  const Status read = CatchTorch([&] {
    const at::NoGradGuard no_grad;
    copy = state.tensors.parameters()[index].tensor.clone();
  });
  Require(state.job->steps()->Check());
  Require(read);
  return copy;
}

void Training::Close() {
  if (state_ == nullptr || !state_->running) return;
  State& state = Running("Close");
  state.RemoveHooks();
  Require(state.job->Close());
}

void Training::Leave() {
  if (state_ == nullptr || !state_->running) return;
  State& state = Running("Leave");
  state.RemoveHooks();
  state.job->Leave();
}

Training Train(torch::nn::Module& module, const TrainOptions& options) {
  auto state = std::make_unique<Training::State>();
  Status begun;
  const Status thrown = CatchTorch([&] { begun = state->Begin(module, options); });
  Require(begun);
  Require(thrown);
  return Training(std::move(state));
}

}  // namespace tidepool
