// Health: named checks over one snapshot, each with a verdict, a sentence and a remedy
// (docs/admin_api.md lists the codes).
//
// Any thread; pure functions. Every check is always listed, so that a reader sees what was checked.
#pragma once

#include <string>
#include <vector>

#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {

// The verdict of a check.
enum class Severity { kOk, kWarn, kError };

// One check.
struct HealthCheck {
  const char* code;  // "POOL_NEAR_FULL"
  Severity severity = Severity::kOk;
  std::string summary;              // one sentence
  std::vector<std::string> detail;  // names of jobs and directories
  const char* remedy = "";          // if it is not ok
  int64_t muted_ns = 0;             // how much longer the overall status ignores it
};

// All checks, in display order.
std::vector<HealthCheck> CheckHealth(const SnapshotLook& look);
// {"status":"warn","checks":[...]}: the status is that of the worst unmuted check.
std::string HealthReport(const SnapshotLook& look);

}  // namespace tidepool::memserver
