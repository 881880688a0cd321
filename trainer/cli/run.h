// RunTraining and the other subcommands of `trainer`: each turns options into an exit code. They
// print their own errors.
#pragma once

#include <string>
#include <vector>

#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Each returns the exit code of the program.
int RunTraining(const RunOptions& options);
int RunEstimate(const RunOptions& options);
int RunSample(const RunOptions& options);
// `options`: of each rank, if the arguments are `run` and its flags.
int RunLaunch(uint32_t ranks, uint32_t restarts, const std::vector<std::string>& arguments,
              const RunOptions& options);
int RunExport(const ExportOptions& options);
int RunRates(const ServerOptions& server, const OutputOptions& output);
int RunTokenize(const TokenizeOptions& options);
int RunVersion();
int RunDoctor(const DeviceOptions& options);

}  // namespace tidepool::trainer
