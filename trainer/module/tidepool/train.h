// Training: trains a torch::nn::Module of your own whose weights, gradients and optimizer states
// lie with a Tidepool memory server.
//
// The whole interface of libtidepool_train (docs/cpp.md). Forward and backward stay your own:
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
// One thread, the program's main thread, which also runs forward and backward; LibTorch's threads
// of backward are off there while a Training lives. Each process is one rank: started by
// torchrun --no-python, srun or mpirun they train one model together, and calls marked "all ranks"
// are made by every rank in the same order.
// Errors are thrown as tidepool::Error. After an error of Step or of an operator the step is not
// taken; what the server has sealed stays.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

// What the library shows; everything else in it is hidden.
#define TIDEPOOL_TRAIN_API __attribute__((visibility("default")))

namespace tidepool {

// What went wrong. Programs branch on id() alone; docs/errors.md lists the names.
class TIDEPOOL_TRAIN_API Error : public std::runtime_error {
 public:
  // The sentence, its place, its cause and its remedy; empty where there is none.
  struct Parts {
    std::string id;  // such as "RcacheTooSmall"
    std::string sentence, where, why, fix;
  };
  // `text`: all of it in several lines, which what() returns.
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

// Trained parameters that have a rate and a decay of their own.
struct ParameterGroup {
  std::vector<std::string> names;   // as named_parameters() has them
  double learning_rate_factor = 1;  // times the rate that Step is given
  double weight_decay = 0;
};

// What a job is told when it begins. Sizes ("8GiB"), shares ("25%") and durations ("90s", "10min")
// are texts; all but what Step is given is fixed from there on.
struct TrainOptions {
  // The job. With a name and resume "auto", a later start goes on behind the last sealed step.
  std::string job;              // empty: from the launcher, or made of the process id
  std::string resume = "auto";  // "auto" or "never"
  bool or_new = false;          // with "auto": begin anew where the states of the job are gone

  // The memory server.
  std::string socket_dir;   // of one that runs; empty: the default place
  bool standalone = false;  // a private one, which ends with rank 0; all ranks on one machine
  std::string pool;         // host memory of the private one; empty: as small as the job allows
  // Path of the program for the private one; empty: beside the library, this program, or in PATH.
  std::string memserver;
  std::string server_timeout = "120s";   // for a server that ended and is started again
  std::string queue_timeout = "0s";      // for room in the server's queue; "0s": refuse at once
  std::string rejoin_timeout = "10min";  // with "auto": for ranks that died

  // What a rank holds while it computes.
  // "fp32" or "bf16", to which parameters of 16 bits and more are converted; empty: each as it is.
  std::string dtype;
  // Those that are fp32 in any case, as norms and routers may be: names, or patterns with * and ?.
  std::vector<std::string> keep_fp32;
  // A share of the parameters that move, or a size; auto: a quarter, and at least 64 MiB and four
  // chunks.
  std::string rcache = "auto";
  std::string chunk_size = "auto";
  std::string device = "cpu";  // "cpu", "cuda" (one GPU a rank) or "cuda:N"
  uint32_t micro_batches = 1;  // backward calls of one step, whose gradients are summed
  uint64_t seed = 1;           // of the first step's evictions, and of states rounded by chance
  // Trained parameters that forward uses at several places; those of several names are found.
  std::vector<std::string> multi_use;

  // The update rule, with torch.optim's definitions; a rule reads the numbers that it has.
  std::string optimizer = "adamw";  // adamw, adam, sgd, adagrad, lion
  std::string states = "fp32";      // with bf16 also split, split-bf16, split-8bit
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0, dampening = 0;  // sgd
  bool nesterov = false;
  double lr_decay = 0;      // adagrad
  double weight_decay = 0;  // of parameters in no group below
  std::vector<ParameterGroup> groups;
  double max_grad_norm = 0;  // of the whole gradient, in L2 norm; 0: no clipping

  bool quiet = false;  // true: nothing is written to stderr about waits
};

// What one step uses for one group of parameters, in place of what the job began with; a rule reads
// the numbers that it has. The momentum of sgd stays above 0, or stays 0.
struct GroupStep {
  double learning_rate = 0;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0, dampening = 0;  // sgd
  double lr_decay = 0;                 // adagrad
};

// How a step ended.
struct StepResult {
  double grad_norm = 0;       // L2 norm over all parameters, before clipping
  bool skipped = false;       // a gradient was not finite: nothing was changed
  uint64_t sealed_steps = 0;  // of the job, with this one
};

// A job of one module on this rank. From Train to Close, Leave or the end of the object the values
// of the module's parameters are the job's: read them as you like, write to none, and do not give
// them other memory.
class TIDEPOOL_TRAIN_API Training {
 public:
  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;
  // Leaves a job that a later start can go on with, and closes any other; tells no errors.
  ~Training();

  // Whether the job was there already: the weights are those of its last sealed step.
  bool resumed() const;
  // Steps that the job has taken, also before this process began.
  uint64_t sealed_steps() const;
  // This process among those that train: share the data by it.
  uint32_t rank() const;
  uint32_t world() const;
  // The job's name and its server's directory, for `memctl --socket-dir`.
  const std::string& job() const;
  const std::string& socket_dir() const;

  // A forward of the whole model begins; `training`: gradients are recorded. Optional: operators
  // show it, but a repeated evaluation that is announced fetches ahead. Required after an exception
  // in backward, with one rank: it drops the step (with several, start the ranks again).
  void BeginForward(bool training);
  // Ends the step, once backward has run `micro_batches` times (what is missing counts as zeros):
  // the gradients, their mean over the ranks, go to the server; waits until the step is sealed.
  // The update goes on behind it. All ranks.
  // Errors: UsageError (no backward since the last step, a rate that is no number from 0),
  // RcacheTooSmall (says how much is enough), those of a lost rank or server.
  // A parameter that no backward of the step has reached, on any rank, keeps its value and its
  // moments, as torch.optim keeps those of one without a gradient.
  StepResult Step(double learning_rate);
  // The same with numbers of each group: first those of the parameters in no group of
  // TrainOptions, then those of its groups. All ranks give the same ones. Errors: also UsageError
  // (another number of groups, or a number that the rule cannot take).
  StepResult Step(const std::vector<GroupStep>& groups);
  // A copy of a parameter, of its shape, in its dtype and on the job's device. Between steps, not
  // behind backward. All ranks. Errors: UsageError (an unknown name).
  at::Tensor Weights(const std::string& name);

  // Ends the job: the server gives its memory back, and the weights are gone. All ranks. From here
  // on the module's parameters must not be read. Does nothing when repeated.
  void Close();
  // Lets go of the job, which stays with the server for a later start. Else as Close.
  void Leave();

 private:
  struct State;
  friend TIDEPOOL_TRAIN_API Training Train(torch::nn::Module& module, const TrainOptions& options);
  explicit Training(std::unique_ptr<State> state);
  State& Running(const char* call) const;

  std::unique_ptr<State> state_;
};

// Begins the job of the module's parameters, or goes on with it, and takes their memory into the
// rCache. In a new job each rank hands over its share of the initial values, so give all ranks the
// same ones (torch::manual_seed). A parameter that asks for no gradient is frozen: it moves like
// the others, jobs with the same frozen values share them at the server, and who goes on with a
// job brings the same. One with several names is one parameter. The Training shares the tensors
// and forgets the module. All ranks.
// Errors: UsageError (names the option or parameter), ConfigBadValue, RcacheTooSmall, PoolFull and
// what else a server refuses; the module is then as it was, but for gradients, which are dropped.
TIDEPOOL_TRAIN_API Training Train(torch::nn::Module& module, const TrainOptions& options);

}  // namespace tidepool
