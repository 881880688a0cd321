// Render: formats views as lines of text for people.
//
// One thread; pure functions: the same view and style give the same lines, on a terminal or not.
#pragma once

#include <string>
#include <vector>

#include "client/admin/views.h"

namespace tidepool::client {

// Output style.
struct Style {
  size_t width = 100;  // columns of the terminal
  bool header = true;
  bool color = false;
  bool wide = false;  // show more columns, if there are any
};

using Lines = std::vector<std::string>;

// One screen: memserver's own status.
Lines RenderStatus(const StatusView& status, const Style& style);
// The state of a job, or that it is suspended.
std::string StateText(const JobView& job);
// " until 13:05" for a job without ranks that is kept until then; else empty.
std::string KeptText(const JobView& job);
Lines RenderJobs(const std::vector<JobView>& jobs, const Style& style);
// Two tables: accounts, and waiting ranks (if any).
Lines RenderNvme(const NvmeView& nvme, const Style& style);
Lines RenderQuotas(const QuotasView& quotas, const Style& style);
Lines RenderChunks(const ChunksView& chunks, const Style& style);
Lines RenderTensors(const TensorsView& tensors, const Style& style);
// One line per event: time, level and message.
Lines RenderEvents(const std::vector<EventView>& events);
// Nodes with their CPUs, share of the pool and workers; then root complexes with their GPUs and
// drives.
Lines RenderTopology(const TopologyView& topology, const Style& style);
// Settings with their origins, then quotas.
Lines RenderConfig(const ConfigView& config, const Style& style);
// A grid of chunks x tiers: one column per chunk, folded if the terminal is too narrow.
Lines RenderResidency(const ResidencyView& residency, const Style& style);

}  // namespace tidepool::client
