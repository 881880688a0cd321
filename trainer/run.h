// The subcommands of `trainer`, each from options to exit code. They print their own errors.
#pragma once

#include <string>
#include <vector>

#include "trainer/run_options.h"

namespace tidepool::trainer {

int RunTraining(const RunOptions& options);
int RunEstimate(const RunOptions& options);
int RunSample(const RunOptions& options);
int RunLaunch(uint32_t ranks, uint32_t restarts, const std::vector<std::string>& arguments);
int RunVersion();
int RunDoctor(const RunOptions& options);

}  // namespace tidepool::trainer
