// MeasureOptimizerStep: whole optimizer steps of a memserver with fp32 states on a drive, compared
// with the bound given by the bytes moved.
//
// One thread. Two servers, one with the states on the drive and one with them on the host,
// alternate with fio. A step lasts from the last gradient until every chunk has its new version.
#pragma once

#include <cstdint>
#include <string>

#include "bench/harness/row.h"

namespace tidepool::bench {

// What to measure, and where.
struct OptimizerStepTask {
  std::string directory;  // mode 0700, our own, without links in its path
  uint64_t rounds = 5;
  uint64_t elements = 0;  // size of the job; rounded up to chunks of 4 Mi
};

// Prints the rows: the step against its bound, the step on the host, and the staging memory.
void MeasureOptimizerStep(const OptimizerStepTask& task, RowPrinter* rows);

}  // namespace tidepool::bench
