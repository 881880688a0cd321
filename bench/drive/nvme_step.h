// MeasureOptimizerStep: whole optimizer steps of a memserver whose fp32 states lie on a drive,
// against the bound of what they move.
//
// One thread. Two servers, one with the states on the drive and one with them on the host, and fio
// take turns. A step is the time from the end of the gradients until every chunk has its new
// version.
#pragma once

#include <cstdint>
#include <string>

#include "bench/harness/row.h"

namespace tidepool::bench {

// What is measured, and where.
struct OptimizerStepTask {
  std::string directory;  // mode 0700, ours, without links in its path
  uint64_t rounds = 5;
  uint64_t elements = 0;  // of the job; rounded up to chunks of 4 Mi
};

// Prints the rows: the step against its bound, the step on the host, and the memory of the staging.
void MeasureOptimizerStep(const OptimizerStepTask& task, RowPrinter* rows);

}  // namespace tidepool::bench
