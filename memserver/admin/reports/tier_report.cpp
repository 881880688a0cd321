// The answers of /v1/tiers, /v1/chunks/{chunk} and /metrics/summary.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/text/json_writer.h"
#include "base/units.h"
#include "memserver/admin/reports/health_report.h"
#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {
namespace {

struct Tier {
  const char* kind;
  uint64_t used, bytes;
  uint64_t JobRow::*of_job;
};

// Writes a tier's capacity, and how much of it each job uses.
void WriteTier(const Snapshot& snapshot, const Tier& tier, JsonWriter* json) {
  json->BeginObject()
      .Field("kind", tier.kind)
      .Field("bytes", tier.bytes)
      .Field("bytes_used", tier.used);

  json->Field("bytes_free", tier.bytes - std::min(tier.used, tier.bytes)).Key("jobs").BeginArray();
  for (const JobRow& job : snapshot.jobs) {
    if (job.*tier.of_job == 0) continue;
    json->BeginObject()
        .Field("id", job.job)
        .Field("name", job.name)
        .Field("bytes", job.*tier.of_job)
        .EndObject();
  }
  json->EndArray().EndObject();
}

std::string Line(const std::string& name, const std::string& value) {
  std::array<char, 16> column{};
  std::snprintf(column.data(), column.size(), "%-10s", name.c_str());
  return column.data() + value + "\n";
}

std::string UsedOf(uint64_t used, uint64_t all) {
  std::array<char, 16> share{};
  std::snprintf(share.data(), share.size(), " (%.0f %%)",
                all == 0 ? 0.0 : 100.0 * static_cast<double>(used) / static_cast<double>(all));
  return FormatBytes(used) + " of " + FormatBytes(all) + share.data();
}

std::string LineOf(const JobRow& job) {
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%.3g s a step", job.step_seconds);
  std::string text = job.name + ": " + (job.suspended ? "suspended" : job.state) + ", " +
                     std::to_string(job.version) + " steps";
  if (job.step_seconds > 0) text += std::string(", ") + seconds.data();
  text += ", " + std::to_string(job.sessions.size()) + " of " + std::to_string(job.world) +
          " ranks, " + FormatBytes(job.pool_bytes) + " host";
  if (job.nvme_bytes > 0) text += ", " + FormatBytes(job.nvme_bytes) + " nvme";
  return job.gpu_bytes == 0 ? text : text + ", " + FormatBytes(job.gpu_bytes) + " gpu";
}

}  // namespace

std::string TiersReport(const Snapshot& snapshot) {
  JsonWriter json;
  json.BeginObject().Key("tiers").BeginArray();
  WriteTier(snapshot,
            {"rcache", snapshot.rcache_used, snapshot.rcache_limit, &JobRow::rcache_bytes}, &json);
  WriteTier(snapshot, {"host", snapshot.pool_used, snapshot.pool_bytes, &JobRow::pool_bytes},
            &json);
  WriteTier(snapshot, {"nvme", snapshot.nvme.bytes_used, snapshot.nvme.bytes, &JobRow::nvme_bytes},
            &json);

  Tier gpus{"gpu", 0, 0, &JobRow::gpu_bytes};
  for (const GpuRow& gpu : snapshot.gpus) gpus.bytes += gpu.bytes;
  for (const JobRow& job : snapshot.jobs) gpus.used += job.gpu_bytes;
  if (gpus.used > 0) WriteTier(snapshot, gpus, &json);
  return json.EndArray().EndObject().Take();
}

std::string SummaryReport(const SnapshotLook& look) {
  const Snapshot& now = *look.snapshot;
  std::string text = Line("state", std::string(StateOf(now)) + " for " + FormatNs(now.uptime_ns));
  text += Line("pool", UsedOf(now.pool_used, now.pool_bytes));
  text += Line("rcache", UsedOf(now.rcache_used, now.rcache_limit));
  if (now.nvme.bytes > 0) text += Line("nvme", UsedOf(now.nvme.bytes_used, now.nvme.bytes));
  text += Line("moved", FormatBytes(now.bytes_h2d) + " to ranks, " + FormatBytes(now.bytes_d2h) +
                            " from them; " + std::to_string(now.parameters_updated) +
                            " parameters updated");

  for (const JobRow& job : now.jobs) text += Line("job", LineOf(job));
  if (!now.waiting.empty())
    text += Line("waiting", std::to_string(now.waiting.size()) + " ranks, for room");
  for (const HealthCheck& check : CheckHealth(look)) {
    if (check.severity != Severity::kOk)
      text += Line("health", std::string(check.code) + ": " + check.summary);
  }
  return text;
}

}  // namespace tidepool::memserver
