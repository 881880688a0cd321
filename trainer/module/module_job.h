// ModuleJob: one rank of a job that trains a user's own module: from its parameters and settings to
// the session slot at the server, the other ranks, and the steps.
//
// One thread, the program's main thread. Call order: Make, Add for each parameter, optionally
// Foresee and Plan, Open, Put for each parameter if the job is new, Bind; then the caller's forward
// and backward (trainer/engine/open_steps.h), and Step; finally Close or Leave. A call out of order
// returns kUsageError and changes nothing. No call depends on the module's code. From Bind on the
// parameters are in the rCache, and must not be read after the job has been closed or left.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/clock.h"
#include "base/formats/optimizer.h"
#include "base/status.h"
#include "client/admin/ask_layout.h"
#include "trainer/cache/weight_put.h"
#include "trainer/checkpoint/run_checkpoints.h"
#include "trainer/engine/engine.h"
#include "trainer/launch/rank_place.h"
#include "trainer/layout/build_layout.h"
#include "trainer/module/auto_rcache.h"
#include "trainer/module/frozen_tensors.h"
#include "trainer/module/module_experts.h"
#include "trainer/module/module_parameter.h"
#include "trainer/module/module_settings.h"
#include "trainer/module/module_way.h"
#include "trainer/module/same_weights.h"
#include "trainer/profile/step_recorder.h"
#include "trainer/run/job.h"
#include "trainer/run/run_device.h"
#include "trainer/run/run_session.h"
#include "trainer/threads/cpu_watch.h"

namespace tidepool::trainer {

// The module's layout and job specification.
struct ModulePlan {
  ChunkLayout layout;
  RcachePlan rcache;
  Exchange exchange = Exchange::kSharded;
  client::JobSpec spec;
};

// The session slot granted by the server.
struct ModuleSlot {
  std::string job, socket_dir;
  bool resumed = false;  // the server holds the weights of sealed step `version`
  Version version = 0;
  uint64_t pool_bytes = 0, rcache_bytes = 0;
};

// The moments of a parameter that a checkpoint must provide: the form of its states, and the
// planes, numbered as in client::Range.
struct ModuleMoments {
  StateForm form = StateForm::kF32;
  std::vector<uint32_t> planes = {};
};

class ModuleJob {
 public:
  // Contacts nobody. `clock` outlives the job. Errors: kUsageError (a launcher's environment that
  // contradicts itself, resume), kConfigBadValue.
  static Result<std::unique_ptr<ModuleJob>> Make(ModuleSettings settings, Clock* clock);
  ~ModuleJob();

  const RankPlace& place() const { return place_; }
  // Adds a parameter, in order of registration. Returns its index. Errors: kUsageError (names it).
  Result<uint32_t> Add(ModuleParameter parameter);
  // Sets the values of a frozen parameter that its tensor does not hold, in the form of
  // FrozenTensors::Give; kept until Bind. Errors: kUsageError.
  Status GiveFrozen(uint32_t index, at::Tensor values);
  // Sets the profile of one micro-batch; its notes are indices of Add. Parameters are packed in
  // order of first use, "auto" uses it (trainer/module/auto_rcache.h), and a job of one rank
  // follows the order from its first step on; a step that deviates continues like one that leaves a
  // recorded order. Errors: kUsageError.
  Status Foresee(StepProfile profile);
  // Computes the plan without a server. Errors: those of BuildLayout and PlanRcache, kUsageError
  // (16-bit states in a job without trained 16-bit parameters).
  Result<ModulePlan> Plan() const;

  // Takes the slot and meets the other ranks; waits. A job at the server keeps its layout and, with
  // "auto", its rCache, whatever a profile says now; Plan then returns the job's. Errors: those of
  // RunSession, kStatesLost (the job had states, and they are gone), kJobMismatch (the server holds
  // the job, and resume is never).
  Result<ModuleSlot> Open();
  // The indices of all trained parameters, in the fastest order for Put.
  std::vector<uint32_t> PutOrder() const;
  // Puts the initial values of a trained parameter, of its shape and any floating type, in host
  // memory; copied before return. Errors: kUsageError, those of the server.
  Status Put(uint32_t index, const at::Tensor& values);
  // Makes a new job begin after the step of a checkpoint. Call it before the first Put; then put
  // the moments of each parameter before its values. Errors: kUsageError, those of the server.
  Status BeginAt(const client::BeginPoint& point);
  // The moments to put for a parameter; none if it is frozen, or before Open.
  ModuleMoments MomentsOf(uint32_t index) const;
  // Puts a moment of a parameter after BeginAt. `words`: one 32-bit word per element
  // (base/formats/moment_words.h), in host memory. Errors: those of Put.
  Status PutMoment(uint32_t index, uint32_t plane, const at::Tensor& words);
  // Completes the puts, compares the ranks' initial weights, places the parameters in the rCache
  // and watches their operators. Errors: those of TrainingEngine::Create, kUsageError (a parameter
  // was not put, or ranks have put different values). From now on compute threads wait briefly
  // while others, such as the server's workers, want the CPUs (trainer/threads).
  Status Bind();

  // Set from Bind on, else null. BeginForward may replace it.
  OpenSteps* steps() { return steps_; }
  // Set from Bind on, if parameters have units and chunks of their own; else null.
  ModuleExperts* experts() { return experts_.get(); }
  const ParameterCache* cache() const { return engine_ ? &engine_->cache() : nullptr; }
  // Announces a forward of the whole model; as OpenSteps::BeginForward. If an exception has ended
  // the last backward of a job of one rank, first drops the step by taking the slot again. Errors:
  // those of Open.
  Status BeginForward(bool training);
  // LibTorch has accumulated the gradient of a parameter; as OpenSteps::Arrived.
  Status Arrived(uint32_t index);
  // Ends the step; the gradient is the mean over the ranks. All ranks call it. Errors: those of
  // OpenSteps::EndStep.
  Result<client::Outcome> Step(double learning_rate);
  // The same with hyperparameters for each group of ModuleSettings, in this step only. Errors: also
  // kUsageError (a number that the rule does not accept; nothing has changed), kAbiMismatch.
  Result<client::Outcome> Step(std::span<const GroupNumbers> groups);
  // What the server shows of the step that ends next: its loss, and its tokens on all ranks, at
  // most 2^48. One rank of the job is enough; the last call before the end counts.
  void ReportStep(float loss, uint64_t tokens) { facts_ = {.loss = loss, .tokens = tokens}; }

  // Call on one rank: begins the checkpoint of the last sealed step. A separate process, `program`
  // (empty: FindProgramBeside finds it), writes it while training continues. The files of the
  // directory `files` are copied into it (empty: none). Waits for the previous checkpoint. Errors:
  // kSaveFailed, kFileUnreadable, what ended the session.
  Status BeginCheckpoint(const CheckpointOptions& options, const std::string& program,
                         const std::string& files);
  // Waits until the checkpoint is written. Errors: kSaveFailed.
  Status FinishCheckpoint();

  // Ends the job, all ranks together: the server frees its memory.
  Status Close();
  // Detaches this process; the server keeps the job for a later start with resume=auto.
  void Leave();

 private:
  ModuleJob(ModuleSettings settings, Clock* clock)
      : settings_(std::move(settings)), clock_(clock) {}
  Result<client::Outcome> Seal(float learning_rate, std::span<const client::GroupStep> groups);
  bool IsAsBegun(uint32_t group, float learning_rate, const GroupNumbers& numbers) const;
  Status NotNow(const char* call, const char* before) const;
  bool IsFrozen(uint32_t index) const { return !parameters_[index].tensor.requires_grad(); }
  Status NameFrozen();
  Status TakeSlot();
  Status TakeHeldSlot(Status refused);
  Status ProvideFrozen();
  Status CheckInitial();
  Status DropStep();
  Result<SessionTask> MakeTask();
  Status Explained(Status ended) const;

  ModuleSettings settings_;
  Clock* const clock_;
  RankPlace place_;
  bool resume_ = false;
  std::string name_;
  std::vector<ModuleParameter> parameters_;
  std::unordered_map<uint32_t, at::Tensor> given_;  // by index, of frozen ones
  std::map<uint32_t, InitialWeights> initial_;      // by index, with several ranks, until Bind
  decltype(client::StepEnd::facts) facts_;          // of the step that ends next
  std::optional<StepProfile> profile_;
  std::optional<DeviceMemory> memory_;  // to plan with; only with a profile
  client::HeldLayout held_;             // of a job with another layout than this one's; else empty

  std::optional<ModulePlan> plan_;  // set by Open
  std::unique_ptr<RunDevice> device_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<FrozenTensors> frozen_;  // until Bind
  std::unique_ptr<WeightPut> put_;         // of a new job, until Bind
  std::unique_ptr<TrainingEngine> engine_;
  Version begun_at_ = 0;                  // the step of the loaded checkpoint; 0: none
  CheckpointOptions checkpoint_options_;  // of `checkpoints_`, which refers to it
  std::unique_ptr<RunCheckpoints> checkpoints_;
  OpenSteps* steps_ = nullptr;
  std::unique_ptr<ModuleExperts> experts_;
  std::unique_ptr<CpuWatch> cpus_;  // from Bind on; null if there is nothing to watch
};

}  // namespace tidepool::trainer
