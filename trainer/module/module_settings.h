// ModuleSettings: a user program's settings for its job: the options of a run and the optimizer
// with its parameter groups; data and steps are the program's own.
//
// Any thread; a value and a pure function, torch-free. ParseModuleSettings checks everything that
// does not need a model.
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
  // Used are the model's dtype and seed, the micro-batches of a step, the optimizer's clip, memory,
  // device, job and server.
  RunOptions run;
  OptimizerSpec optimizer;  // in full precision, instead of run.optimizer
  std::vector<client::ParameterGroup> groups;
  std::string note;  // identifies the run (run_note.h); at most 480 bytes
};

// Parses one JSON object. Every key is optional:
//  job, dtype (fp32, bf16), rcache, plan (ddp, zero2, zero3, auto), chunk_size, device,
//  socket_dir, memserver (program path for a private server), pool, server_timeout,
//  queue_timeout, rejoin_timeout, resume (auto, never), note: texts in the form of the flags of
//  the same name. rcache "auto", the default, is a
//  quarter of the evictable parameters, and at least 64 MiB and four chunks;
//  standalone, or_new, quiet (no messages about waits): true or false; seed, micro_batches: whole
//  numbers; max_grad_norm: a number;
//  optimizer: {rule, states, beta1, beta2, eps, momentum, dampening, lr_decay, nesterov};
//  parameter_groups: [[factor of the learning rate, weight decay], ...].
// Errors: kUsageError, kConfigBadValue (name the key).
Result<ModuleSettings> ParseModuleSettings(std::string_view json);

}  // namespace tidepool::trainer
