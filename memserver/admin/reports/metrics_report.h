// MetricsReport: the numbers of one snapshot as Prometheus reads them (docs/admin_api.md lists the
// families).
//
// Any thread; a pure function. Names of families are part of the interface: packaging/ has
// dashboards and alerts made of them.
#pragma once

#include <string>

#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {

// What a snapshot does not show of jobs (another user's) is not here either; the sums are of all.
std::string MetricsReport(const SnapshotLook& look, const ServerFacts& facts);

}  // namespace tidepool::memserver
