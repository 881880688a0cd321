// Training: trains your own torch::nn::Module while a Tidepool memory server holds its weights,
// gradients and optimizer states.
//
// The whole interface of libtidepool_train (docs/cpp.md). You run forward and backward yourself:
//
//   Net net;                                            // a torch::nn::ModuleHolder
//   tidepool::Training training = tidepool::Train(*net, {.standalone = true, .weight_decay = 0.1});
//   for (int step = 0; step < 100; ++step) {
//     const torch::Tensor loss = net->Loss(batch(step));
//     loss.backward();
//     training.Step(1e-3);                              // no optimizer, no zero_grad
//   }
//   training.Close();
//
// One thread, the program's main thread, which also runs forward and backward; LibTorch's backward
// threads are off there while a Training lives. Each process is one rank: started by torchrun
// --no-python, srun or mpirun, they train one model together, and all ranks make the calls marked
// "all ranks" in the same order.
// Errors are thrown as tidepool::Error. After an error of Step or of an operator the step is not
// taken; sealed steps stay.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

// Exported symbols; everything else in the library is hidden.
#define TIDEPOOL_TRAIN_API __attribute__((visibility("default")))

namespace tidepool {

// An error. Programs should branch on id() only; docs/errors.md lists the names.
class TIDEPOOL_TRAIN_API Error : public std::runtime_error {
 public:
  // The message, its location, its cause and its remedy; empty if there is none.
  struct Parts {
    std::string id;  // such as "RcacheTooSmall"
    std::string sentence, where, why, fix;
  };
  // `text`: everything in several lines, as returned by what().
  Error(const std::string& text, Parts parts);
  ~Error() override;

  // The parts, as above.
  const std::string& id() const { return parts_->id; }
  const std::string& sentence() const { return parts_->sentence; }
  const std::string& where() const { return parts_->where; }
  const std::string& why() const { return parts_->why; }
  const std::string& fix() const { return parts_->fix; }

 private:
  std::shared_ptr<const Parts> parts_;
};

// Trained parameters with their own learning rate and weight decay.
struct ParameterGroup {
  std::vector<std::string> names;   // as in named_parameters()
  double learning_rate_factor = 1;  // multiplies the rate passed to Step
  double weight_decay = 0;
};

// Options of a job, fixed when it begins, except those passed to Step. Sizes ("8GiB"), shares
// ("25%") and durations ("90s", "10min") are texts.
struct TrainOptions {
  // The job. With a name and resume "auto", a later start continues after the last sealed step.
  std::string job;              // empty: the launcher's, or made from the process id
  std::string resume = "auto";  // "auto" or "never"
  bool or_new = false;          // with "auto": start over if the job's states are gone

  // The memory server.
  std::string socket_dir;   // of a running one; empty: the default directory
  bool standalone = false;  // a private one, which ends with rank 0; all ranks on one machine
  std::string pool;         // host memory of the private one; empty: as small as the job allows
  // Program path for the private one; empty: beside the library, this program, or in PATH.
  std::string memserver;
  std::string server_timeout = "120s";   // wait for a server that has ended and is restarted
  std::string queue_timeout = "0s";      // wait for room in the server's queue; "0s": none
  std::string rejoin_timeout = "10min";  // with "auto": wait for ranks that died

  // The part of the model that a rank holds while it computes.
  // "fp32" or "bf16": dtype of all parameters of 16 bits and more; empty: each keeps its own.
  std::string dtype;
  // Parameters that stay fp32, such as norms and routers: names, or patterns with * and ?.
  std::vector<std::string> keep_fp32;
  // A share of the evictable parameters, or a size; auto: a quarter, and at least 64 MiB and four
  // chunks.
  std::string rcache = "auto";
  std::string chunk_size = "auto";
  std::string device = "cpu";  // "cpu", "cuda" (one GPU per rank) or "cuda:N"
  uint32_t micro_batches = 1;  // backward calls per step, whose gradients are summed
  uint64_t seed = 1;           // for the first step's evictions and stochastic rounding
  // Trained parameters that forward uses more than once; those with several names are found.
  std::vector<std::string> multi_use;

  // The update rule, as in torch.optim; a rule reads the numbers that it uses.
  std::string optimizer = "adamw";  // adamw, adam, sgd, adagrad, lion
  std::string states = "fp32";      // with bf16 also split, split-bf16, split-8bit
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0, dampening = 0;  // for sgd
  bool nesterov = false;
  double lr_decay = 0;      // for adagrad
  double weight_decay = 0;  // for parameters in no group below
  std::vector<ParameterGroup> groups;
  double max_grad_norm = 0;  // L2 norm of the whole gradient; 0: no clipping

  bool quiet = false;  // true: no messages about waits on stderr
};

// One parameter group's hyperparameters in one step, instead of the job's; a rule reads the numbers
// that it uses. The momentum of sgd stays above 0, or stays 0.
struct GroupStep {
  double learning_rate = 0;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0, dampening = 0;  // for sgd
  double lr_decay = 0;                 // for adagrad
};

// Result of a step.
struct StepResult {
  double grad_norm = 0;       // L2 norm over all parameters, before clipping
  bool skipped = false;       // a gradient was not finite: nothing changed
  uint64_t sealed_steps = 0;  // of the job, including this one
};

// A job of one module on this rank. From Train to Close, Leave or destruction the job owns the
// values of the module's parameters: you may read them, but not write to them or replace their
// memory.
class TIDEPOOL_TRAIN_API Training {
 public:
  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;
  // Leaves a job that a later start can continue, and closes any other; ignores errors.
  ~Training();

  // Whether the job already existed: the weights are those of its last sealed step.
  bool resumed() const;
  // Number of the job's steps, including those before this process.
  uint64_t sealed_steps() const;
  // This process's rank and the number of ranks: divide the data by them.
  uint32_t rank() const;
  uint32_t world() const;
  // The job's name and its server's directory, for `memctl --socket-dir`.
  const std::string& job() const;
  const std::string& socket_dir() const;

  // Announces a forward of the whole model; `training`: gradients are recorded. Optional: operators
  // show it, but an announced repeated evaluation is prefetched. Required after an exception in
  // backward, with one rank: it drops the step (with several, restart the ranks).
  void BeginForward(bool training);
  // Ends the step, after `micro_batches` backward calls (missing ones count as zeros): sends the
  // gradients, as their mean over the ranks, to the server; waits until the step is sealed. The
  // update continues in the background. All ranks. Errors: UsageError (no backward since the last
  // step, a rate that is negative or not a number), RcacheTooSmall (names a sufficient size), those
  // of a lost rank or server.
  // A parameter that no backward of the step has reached, on any rank, keeps its value and its
  // moments, as in torch.optim for one without a gradient.
  StepResult Step(double learning_rate);
  // The same with each group's numbers: first for the parameters in no group of TrainOptions, then
  // for its groups. Equal on all ranks. Errors: also UsageError (a wrong number of groups, or a
  // number that the rule does not accept).
  StepResult Step(const std::vector<GroupStep>& groups);
  // Returns a copy of a parameter with its shape, in its dtype and on the job's device. Call it
  // between steps, not after a backward. All ranks. Errors: UsageError (an unknown name).
  at::Tensor Weights(const std::string& name);

  // Ends the job: the server frees its memory, and the weights are gone. All ranks. Afterwards the
  // module's parameters must not be read. Idempotent.
  void Close();
  // Detaches; the job stays at the server for a later start. Otherwise like Close.
  void Leave();

 private:
  struct State;
  friend TIDEPOOL_TRAIN_API Training Train(torch::nn::Module& module, const TrainOptions& options);
  explicit Training(std::unique_ptr<State> state);
  State& Running(const char* call) const;

  std::unique_ptr<State> state_;
};

// Begins the job of the module's parameters, or continues it, and moves their memory to the rCache.
// In a new job each rank puts its share of the initial values, so give all ranks the same ones
// (torch::manual_seed). A parameter that does not require a gradient is frozen: it moves like the
// others, jobs with the same frozen values share them at the server, and a resumed job needs the
// same values. One with several names is one parameter. The Training shares the tensors and does
// not keep the module. All ranks. Errors: UsageError (names the option or parameter),
// ConfigBadValue, RcacheTooSmall, PoolFull and other refusals of a server; the module is then
// unchanged, except that gradients are dropped.
TIDEPOOL_TRAIN_API Training Train(torch::nn::Module& module, const TrainOptions& options);

}  // namespace tidepool
