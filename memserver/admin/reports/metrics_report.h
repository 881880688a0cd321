// MetricsReport: the numbers of one snapshot in Prometheus format (docs/admin_api.md lists the
// families).
//
// Any thread; a pure function. Family names are part of the interface: dashboards and alerts in
// packaging/ use them.
#pragma once

#include <string>

#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {

// Leaves out what a snapshot hides about jobs of other users; the sums cover all users.
std::string MetricsReport(const SnapshotLook& look, const ServerFacts& facts);

}  // namespace tidepool::memserver
