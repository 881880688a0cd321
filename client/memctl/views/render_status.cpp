// RenderStatus: one screen: memserver's own status.
#include <algorithm>

#include "base/text/plural.h"
#include "base/units.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/table.h"

namespace tidepool::client {
namespace {

// "[#####.......]  42 %"
std::string Bar(uint64_t used, uint64_t whole) {
  constexpr size_t kCells = 20;
  const double share =
      whole == 0 ? 0 : std::min(1.0, static_cast<double>(used) / static_cast<double>(whole));
  const auto filled = static_cast<size_t>(share * kCells + 0.5);
  return "[" + std::string(filled, '#') + std::string(kCells - filled, '.') + "] " +
         FormatFixed(share * 100, 0) + " %";
}

// "2 MiB for 1.00 GiB; touched in 1.2 s (1.2 s/GiB)".
std::string Pages(const StatusView& status) {
  std::string text =
      status.pool_huge_bytes == 0 ? "4 KiB" : "2 MiB for " + FormatBytes(status.pool_huge_bytes);
  if (status.pool_touch_seconds <= 0 || status.pool_bytes == 0)
    return text + "; the pool was there when the server started";
  const double per_gib = status.pool_touch_seconds * static_cast<double>(kGiB) /
                         static_cast<double>(status.pool_bytes);
  return text + "; touched in " + FormatDuration(status.pool_touch_seconds) + " (" +
         FormatDuration(per_gib) + " a GiB)";
}

// "cuda:0    NVIDIA H200, 140 GiB, 1 rank; 477 MiB taken by memserver; the whole pool is
// registered", and any problems.
void AddGpu(const GpuView& gpu, const Style& style, Lines* lines) {
  std::string line = Printable(gpu.name);
  line.resize(std::max<size_t>(line.size() + 1, 10), ' ');
  line +=
      Printable(gpu.model) + ", " + FormatBytes(gpu.bytes) + ", " + Counted(gpu.sessions, "rank");
  if (gpu.taken > 0) line += "; " + FormatBytes(gpu.taken) + " taken by memserver";
  const bool whole = gpu.pinned_bytes >= gpu.pool_bytes;
  line += whole ? "; the whole pool is registered"
                : "; " + FormatBytes(gpu.pinned_bytes) + " of " + FormatBytes(gpu.pool_bytes) +
                      " of the pool registered";

  lines->push_back(line + "; " + FormatBytes(gpu.bytes_h2d) + " to it, " +
                   FormatBytes(gpu.bytes_d2h) + " from it");
  if (style.wide) {
    lines->push_back(
        "          " +
        Printable(gpu.uuid + ", by " + gpu.form + (gpu.note.empty() ? "" : " (" + gpu.note + ")")) +
        ", registered in " + FormatDuration(gpu.pin_seconds));
  }

  if (!gpu.pin_failure.empty())
    lines->push_back("WARNING   " + Printable(gpu.name + ": not registered: " + gpu.pin_failure));
  if (gpu.copies_unpinned > 0) {
    lines->push_back("WARNING   " + Printable(gpu.name) + ": " +
                     std::to_string(gpu.copies_unpinned) +
                     " slow copies, of memory that is not registered");
  }
  if (!gpu.failure.empty())
    lines->push_back("WARNING   " +
                     Printable(gpu.name + ": nothing more is done on it: " + gpu.failure));
}

}  // namespace

Lines RenderStatus(const StatusView& status, const Style& style) {
  Lines lines;
  lines.push_back("memserver " + Printable(status.version) + "  " + Printable(status.state) +
                  "   pid " + std::to_string(status.pid) + "   up " +
                  FormatDuration(status.uptime_seconds) + "   " + Printable(status.socket_dir));
  lines.push_back("pool      " + Bar(status.pool_used, status.pool_bytes) + "   " +
                  FormatBytes(status.pool_used) + " of " + FormatBytes(status.pool_bytes) + ", " +
                  FormatBytes(status.pool_bytes - std::min(status.pool_used, status.pool_bytes)) +
                  " free");

  if (status.frozen_chunks > 0) {
    lines.push_back("frozen    " + FormatBytes(status.frozen_bytes) + " of that in " +
                    Counted(status.frozen_chunks, "frozen chunk") + ", each counted once");
  }
  lines.push_back("pages     " + Pages(status));
  if (status.nvme_bytes > 0) {
    lines.push_back("NVMe      " + Bar(status.nvme_used, status.nvme_bytes) + "   " +
                    FormatBytes(status.nvme_used) + " of " + FormatBytes(status.nvme_bytes) + "; " +
                    FormatBytes(status.nvme_read) + " read, " + FormatBytes(status.nvme_written) +
                    " written, " + Counted(status.nvme_repetitions, "repetition"));
  }

  if (status.nvme_stalled > 0)
    lines.push_back("WARNING   the drive has not answered " +
                    Counted(status.nvme_stalled, "request") + " for 10 s");
  if (!status.nvme_failed.empty()) {
    lines.push_back("WARNING   a flush of " + Printable(status.nvme_failed) +
                    " failed: it takes no new jobs");
  }

  lines.push_back("rCache    " + Bar(status.rcache_used, status.rcache_limit) + "   " +
                  FormatBytes(status.rcache_used) + " of " + FormatBytes(status.rcache_limit) +
                  " granted to ranks");
  for (const GpuView& gpu : status.gpus) AddGpu(gpu, style, &lines);
  lines.push_back("jobs      " + Counted(status.jobs, "job") + ", " +
                  Counted(status.sessions, "rank") + " attached, " +
                  Counted(status.sessions_ended_badly, "session") + " ended badly since start");
  lines.push_back("moved     " + FormatBytes(status.bytes_h2d) + " to ranks, " +
                  FormatBytes(status.bytes_d2h) + " from ranks");
  lines.push_back("updated   " + FormatCount(status.parameters_updated) + " parameters by " +
                  Counted(status.workers, "worker") + ", fetched " +
                  std::to_string(status.prefetch) + " elements ahead");

  if (style.wide) {
    lines.push_back("loop      " + std::to_string(status.turns) + " turns; these numbers are " +
                    FormatDuration(status.snapshot_age_seconds) + " old");
  }
  if (status.silent_seconds > 1) {
    lines.push_back("WARNING   the serve loop has not answered for " +
                    FormatDuration(status.silent_seconds) + "; these numbers are " +
                    FormatDuration(status.snapshot_age_seconds) + " old");
  }
  return lines;
}

}  // namespace tidepool::client
