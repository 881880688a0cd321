// ModuleSettings: what a program of the user's own says of its job: the options of a run, the
// optimizer with its parameter groups, and nothing of data or steps, which are the program's.
//
// Any thread; a value and a pure function, torch-free. ParseModuleSettings checks all that can be
// told without a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/formats/optimizer.h"
#include "base/status.h"
#include "client/job_spec.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

struct ModuleSettings {
  // Read are the model's dtype and seed, the micro-batches of a step, the optimizer's clip, memory,
  // device, job and server.
  RunOptions run;
  OptimizerSpec optimizer;  // in full precision, in place of run.optimizer
  std::vector<client::ParameterGroup> groups;
  std::string note;  // what the run is known by (run_note.h); at most 480 bytes
};

// Reads one JSON object. Every key is optional:
//   job, dtype (fp32, bf16), rcache, chunk_size, device, socket_dir, memserver (path of the program
//   for a private server), pool, server_timeout, queue_timeout, rejoin_timeout, resume (auto,
//   never), note: texts in the form of the flags of the same name. An rCache of "auto", the
//   default, is a quarter of the parameters that can be evicted, and at least 64 MiB and four
//   chunks;
//   standalone, or_new, quiet (waits are not told): true or false; seed, micro_batches: whole
//   numbers; max_grad_norm: a number;
//   optimizer: {rule, states, beta1, beta2, eps, momentum, dampening, lr_decay, nesterov};
//   parameter_groups: [[factor of the learning rate, weight decay], ...].
// Errors: kUsageError, kConfigBadValue (name the key).
Result<ModuleSettings> ParseModuleSettings(std::string_view json);

}  // namespace tidepool::trainer
