// ModuleJob: one rank's share of a job that trains a module of the user's own: from its parameters
// and settings to the session slot at the server, the other ranks, and the steps.
//
// One thread, the program's main thread. In this order: Make, Add for each parameter, Foresee and
// Plan where wanted, Open, Put for each parameter where the job is new, Bind; then forward and
// backward by the caller (trainer/engine/open_steps.h), and Step; at last Close or Leave. A call
// out of this order is a kUsageError that changes nothing. No call looks at the module's code.
// From Bind on the parameters lie in the rCache, and must not be read when the job has been closed
// or left.
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
#include "trainer/engine/engine.h"
#include "trainer/launch/rank_place.h"
#include "trainer/layout/build_layout.h"
#include "trainer/module/auto_rcache.h"
#include "trainer/module/frozen_tensors.h"
#include "trainer/module/module_parameter.h"
#include "trainer/module/module_settings.h"
#include "trainer/module/same_weights.h"
#include "trainer/profile/step_recorder.h"
#include "trainer/run/job.h"
#include "trainer/run/run_device.h"
#include "trainer/run/run_session.h"
#include "trainer/threads/cpu_watch.h"

namespace tidepool::trainer {

// What the layout and the server make of the module.
struct ModulePlan {
  ChunkLayout layout;
  RcachePlan rcache;
  client::JobSpec spec;
};

// What the server has granted.
struct ModuleSlot {
  std::string job, socket_dir;
  bool resumed = false;  // the server holds the weights, of the sealed step `version`
  Version version = 0;
  uint64_t pool_bytes = 0, rcache_bytes = 0;
};

class ModuleJob {
 public:
  // Nothing is contacted. `clock` outlives the job. Errors: kUsageError (the environment of a
  // launcher that contradicts itself, resume), kConfigBadValue.
  static Result<std::unique_ptr<ModuleJob>> Make(ModuleSettings settings, Clock* clock);
  ~ModuleJob();

  const RankPlace& place() const { return place_; }
  // In the order of registration. Returns its index. Errors: kUsageError (names the parameter).
  Result<uint32_t> Add(ModuleParameter parameter);
  // The values of a frozen parameter that its tensor does not hold, as FrozenTensors::Give wants
  // them; kept until Bind. Errors: kUsageError.
  Status GiveFrozen(uint32_t index, at::Tensor values);
  // What a profile says of one micro-batch; its notes are indices of Add. Parameters are packed in
  // the order of their first use, "auto" is decided by it (trainer/module/auto_rcache.h), and a job
  // of one rank follows the order from its first step on; a step that leaves it goes on as one that
  // leaves a recorded order. Errors: kUsageError.
  Status Foresee(StepProfile profile);
  // Needs no server. Errors: those of BuildLayout and PlanRcache, kUsageError (states of 16 bits in
  // a job without trained parameters of 16 bits).
  Result<ModulePlan> Plan() const;

  // Takes the slot and meets the other ranks; waits. A job that the server holds keeps its layout,
  // and with "auto" its rCache, whatever a profile says now; Plan is the job's then. Errors: those
  // of RunSession, kStatesLost (the job had states, and they are gone), kJobMismatch (the server
  // holds the job, and resume is never).
  Result<ModuleSlot> Open();
  // The indices of all trained parameters, in the order in which Put takes them fastest.
  std::vector<uint32_t> PutOrder() const;
  // The initial values of a trained parameter, of its shape and any floating type, in host
  // memory; copied before return. Errors: kUsageError, those of the server.
  Status Put(uint32_t index, const at::Tensor& values);
  // Ends the puts, compares the ranks' initial weights, places the parameters in the rCache and
  // watches their operators. Errors: those of TrainingEngine::Create, kUsageError (a parameter was
  // not put, or ranks have put different ones). From here on compute threads wait shortly while
  // others, as the server's workers, want the CPUs (trainer/threads).
  Status Bind();

  // From Bind on, else null. A new one after BeginForward.
  OpenSteps* steps() { return steps_; }
  const ParameterCache* cache() const { return engine_ ? &engine_->cache() : nullptr; }
  // A forward of the whole model begins; as OpenSteps::BeginForward. Where an exception has ended
  // the last backward of a job of one rank, the step is dropped first, by taking the slot anew.
  // Errors: those of Open.
  Status BeginForward(bool training);
  // LibTorch has accumulated the gradient of a parameter; as OpenSteps::Arrived.
  Status Arrived(uint32_t index);
  // Ends the step with the mean over the ranks of the gradients that came. All ranks call it.
  // Errors: those of OpenSteps::EndStep.
  Result<client::Outcome> Step(double learning_rate);
  // The same with numbers for each group of ModuleSettings, for this step alone. Errors: also
  // kUsageError (a number that the rule cannot take; nothing has changed), kAbiMismatch.
  Result<client::Outcome> Step(std::span<const GroupNumbers> groups);

  // The job ends, all ranks together: the server gives its memory back.
  Status Close();
  // This process lets go of the job; the server keeps it for a later start with resume=auto.
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
  std::map<uint32_t, InitialWeights> initial_;      // by index, of several ranks, until Bind
  std::optional<StepProfile> profile_;
  std::optional<DeviceMemory> memory_;  // to plan with; beside a profile alone
  client::HeldLayout held_;  // of a job that had another layout than this one's; else empty

  std::optional<ModulePlan> plan_;  // from Open on
  std::unique_ptr<RunDevice> device_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<FrozenTensors> frozen_;  // until Bind
  std::unique_ptr<WeightPut> put_;         // of a new job, until Bind
  std::unique_ptr<TrainingEngine> engine_;
  OpenSteps* steps_ = nullptr;
  std::unique_ptr<CpuWatch> cpus_;  // from Bind on; null where nothing is to be watched
};

}  // namespace tidepool::trainer
