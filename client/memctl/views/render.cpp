#include "client/memctl/views/render.h"

#include <algorithm>

#include "base/clock.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "client/memctl/views/table.h"

namespace tidepool::client {
namespace {

std::string Ranks(const std::vector<uint64_t>& ranks) {
  std::string text;
  for (const uint64_t rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text.empty() ? "-" : text;
}

// The node of a GPU's staging memory, "-" for other devices.
std::string StagingOf(const TopologyView& topology, const TopologyDevice& device) {
  for (const TopologyStaging& stage : topology.staging) {
    if (stage.gpu == device.address) return std::to_string(stage.node);
  }
  return "-";
}

// Adds the reads and writes that a drive does not answer.
void AddLate(const NvmeView& nvme, Lines* lines) {
  for (const LateView& each : nvme.late) {
    const std::string who = each.job == 0
                                ? "no job's"
                                : "job " + std::to_string(each.job) + " (" + Printable(each.name) +
                                      "), chunk " + std::to_string(each.chunk) + ", piece " +
                                      std::to_string(each.piece);

    lines->push_back(std::string(each.lost ? "LOST    " : "LATE    ") + who + ", " +
                     Printable(each.directory) + " at offset " + std::to_string(each.offset) +
                     ": a " + (each.write ? "write" : "read") + " for " +
                     FormatDuration(each.seconds));
  }
}

// Adds the pieces that a drive failed to write.
void AddUnwritten(const NvmeView& nvme, Lines* lines) {
  if (nvme.writes_failed + nvme.pieces_in_pool + nvme.pieces_waiting == 0) return;
  lines->push_back("WARNING " + Counted(nvme.writes_failed, "write") + " failed; " +
                   Counted(nvme.pieces_in_pool, "piece") + " in the pool instead (" +
                   FormatBytes(nvme.bytes_in_pool) + "), " + std::to_string(nvme.pieces_waiting) +
                   " waiting for room there");

  for (const UnwrittenView& each : nvme.unwritten) {
    lines->push_back(std::string(each.in_pool ? "IN POOL " : "WAITS   ") + "job " +
                     std::to_string(each.job) + " (" + Printable(each.name) + "), chunk " +
                     std::to_string(each.chunk) + ", piece " + std::to_string(each.piece) + ", " +
                     Printable(each.directory) + " at offset " + std::to_string(each.offset) +
                     ": " + Printable(each.error));
  }
}

}  // namespace

std::string StateText(const JobView& job) {
  return job.suspended ? "suspended" : job.state;
}

std::string KeptText(const JobView& job) {
  return job.kept_until
             ? " until " + FormatWhen(static_cast<int64_t>(*job.kept_until), WallSeconds())
             : "";
}

Lines RenderEvents(const std::vector<EventView>& events) {
  Lines lines;
  for (const EventView& event : events) {
    lines.push_back(Printable(event.time + "  " +
                              (event.level == "info" ? "" : event.level + ": ") + event.message +
                              (event.fields.empty() ? "" : "  " + event.fields)));
  }
  return lines;
}

namespace {

const std::vector<Table::Column> kWideColumns{
    {"UID", true},       {"ACCOUNT"},     {"WEIGHT", true},     {"PRIORITY"},
    {"GUARANTEE", true}, {"LIMIT", true}, {"NVME LIMIT", true}, {"CHUNKS", true},
    {"ON NVME", true},   {"P50", true},   {"P99", true},        {"CPUS"}};

std::string SecondsText(double seconds) {
  return seconds > 0 ? FormatDuration(seconds) : "-";
}

std::string LimitText(const std::optional<uint64_t>& limit) {
  return limit ? FormatBytes(*limit) : "none";
}

void AddWide(const JobView& job, std::vector<std::string>* cells) {
  const QuotaView& quota = job.quota;
  cells->insert(cells->end(),
                {std::to_string(job.uid), job.account, std::to_string(quota.weight), quota.priority,
                 FormatBytes(quota.guarantee), LimitText(quota.limit), LimitText(quota.nvme_limit),
                 std::to_string(job.chunks), std::to_string(job.chunks_spilled),
                 SecondsText(job.step_seconds_p50), SecondsText(job.step_seconds_p99),
                 job.cpus_shared ? "shared" : "own"});
}

}  // namespace

Lines RenderJobs(const std::vector<JobView>& jobs, const Style& style) {
  const bool nvme =
      std::any_of(jobs.begin(), jobs.end(), [](const JobView& job) { return job.nvme_bytes > 0; });
  const bool frozen = std::any_of(jobs.begin(), jobs.end(),
                                  [](const JobView& job) { return job.frozen_bytes > 0; });

  std::vector<Table::Column> columns{
      {"ID", true},
      {"NAME"},
      {"STATE"},
      {"RANKS", true},
      {"TYPE"},
      {"STEPS", true},
      {"PARAMS", true},
      // Memory, and time.
      {std::string("POOL") + (frozen ? "+FROZEN" : "") + (nvme ? "+NVME" : ""), true},
      {"RCACHE", true},
      {"STEP", true},
      {"LOSS", true},
      {"TOK/S", true},
      {"GRAD NORM", true},
      {"SKIPPED", true}};
  if (style.wide) columns.insert(columns.end(), kWideColumns.begin(), kWideColumns.end());

  Table table(columns);
  for (const JobView& job : jobs) {
    const std::string frozen_text = job.frozen_bytes > 0 ? " + " + FormatBytes(job.frozen_bytes)
                                    : frozen             ? " + 0 B"
                                                         : "";
    const std::string nvme_text =
        job.nvme_bytes > 0 ? " + " + FormatBytes(job.nvme_bytes) : std::string();

    std::vector<std::string> cells{
        std::to_string(job.id), job.name, StateText(job) + KeptText(job),
        std::to_string(job.ranks_attached) + "/" + std::to_string(job.world), job.dtype,
        std::to_string(job.version), FormatCount(job.parameters),
        // Memory, and time.
        FormatBytes(job.pool_bytes) + frozen_text + nvme_text, FormatBytes(job.rcache_bytes),
        SecondsText(job.step_seconds), job.loss ? FormatFixed(*job.loss, 4) : "-",
        job.tokens_per_second > 0 ? FormatFixed(job.tokens_per_second, 0) : "-",
        job.grad_norm > 0 ? FormatFixed(job.grad_norm, 3) : "-", std::to_string(job.steps_skipped)};
    if (style.wide) AddWide(job, &cells);
    table.Add(std::move(cells), job.node);
  }
  return table.Lines(style.header);
}

Lines RenderQuotas(const QuotasView& quotas, const Style& style) {
  Table accounts({{"ACCOUNT"},
                  {"USED", true},
                  {"ROOM", true},
                  {"GUARANTEE", true},
                  {"LIMIT", true},
                  {"NVME", true},
                  {"NVME LIMIT", true},
                  {"WEIGHT", true},
                  {"PRIORITY"}});

  for (const AccountView& row : quotas.accounts) {
    accounts.Add({row.account, FormatBytes(row.used), FormatBytes(row.room),
                  FormatBytes(row.guarantee), LimitText(row.limit), FormatBytes(row.nvme_used),
                  LimitText(row.nvme_limit), std::to_string(row.weight), row.priority},
                 row.node);
  }

  Lines lines = accounts.Lines(style.header);
  if (quotas.waiting.empty()) return lines;
  Table waiting({{"WAITING"},
                 {"RANK", true},
                 {"ACCOUNT"},
                 {"PRIORITY"},
                 {"POOL", true},
                 {"RCACHE", true},
                 {"SINCE", true},
                 {"BECAUSE"}});

  for (const WaitingView& row : quotas.waiting) {
    waiting.Add(
        {row.name, std::to_string(row.rank), row.account, row.priority, FormatBytes(row.pool_bytes),
         FormatBytes(row.rcache_bytes), FormatDuration(row.waited_seconds), row.why},
        row.node);
  }
  lines.emplace_back();
  for (std::string& line : waiting.Lines(style.header)) lines.push_back(std::move(line));
  return lines;
}

namespace {

void AddDemotion(const DemotionView& demotion, Lines* lines) {
  if (demotion.job != 0) {
    lines->push_back("MOVING  job " + std::to_string(demotion.job) + " (" +
                     Printable(demotion.name) +
                     ") from the pool: " + std::to_string(demotion.pieces_written) + " of " +
                     Counted(demotion.pieces, "piece"));
  }
  if (demotion.moved + demotion.failed + demotion.dropped == 0) return;

  lines->push_back("moved   " + Counted(demotion.moved, "job") + " whose room others needed, " +
                   FormatBytes(demotion.bytes_freed) + " of the pool; " +
                   std::to_string(demotion.failed) + " failed, " +
                   std::to_string(demotion.dropped) + " dropped");
}

}  // namespace

Lines RenderNvme(const NvmeView& nvme, const Style& style) {
  if (nvme.directories.empty()) return {"memserver has no NVMe directory"};
  Table table({{"DIRECTORY"},
               {"SIZE", true},
               {"USED", true},
               {"FREE", true},
               {"READ", true},
               {"WRITTEN", true},
               {"STATE"}});

  for (const NvmeDirectoryView& row : nvme.directories) {
    table.Add({row.path, FormatBytes(row.bytes), FormatBytes(row.used), FormatBytes(row.free),
               FormatBytes(row.read), FormatBytes(row.written),
               row.failed ? "a flush failed: takes no new jobs" : "good"});
  }
  Lines lines = table.Lines(style.header);
  lines.emplace_back();
  lines.push_back("engine  " + Printable(nvme.engine) + "; " +
                  Counted(nvme.repetitions, "repetition") + " after errors");

  if (nvme.stalled > 0)
    lines.push_back("WARNING the drive has not answered " + Counted(nvme.stalled, "request") +
                    " for 10 s");
  AddLate(nvme, &lines);
  AddUnwritten(nvme, &lines);
  AddDemotion(nvme.demotion, &lines);
  std::string scrub = "scrub   " + Printable(nvme.scrub_state);
  if (nvme.scrub_state != "never") {
    scrub += ": " + std::to_string(nvme.pieces_checked) + " of " + Counted(nvme.pieces, "piece") +
             " checked, " + FormatBytes(nvme.bytes_checked) + " in " +
             FormatDuration(nvme.seconds) + "; " + std::to_string(nvme.damaged) + " damaged";
  }

  lines.push_back(scrub);
  for (const DamageView& each : nvme.damage) {
    lines.push_back("DAMAGED job " + std::to_string(each.job) + " (" + Printable(each.name) +
                    "), chunk " + std::to_string(each.chunk) + ", piece " +
                    std::to_string(each.piece) + ", " + Printable(each.directory) + " at offset " +
                    std::to_string(each.offset) + ": " + Printable(each.what));
  }
  return lines;
}

namespace {

// The bytes of a fetch of the whole chunk, as in `residency`.
std::string WeightsText(const ChunkView& chunk) {
  if (chunk.dtype.empty()) return "-";  // a recording of an earlier release
  return FormatBytes(chunk.elements * (chunk.dtype == "fp32" ? 4 : 2));
}

}  // namespace

Lines RenderChunks(const ChunksView& chunks, const Style& style) {
  Table table({{"JOB", true},
               {"CHUNK", true},
               {"STATE"},
               {"GROUP", true},
               {"ELEMENTS", true},
               {"WEIGHTS", true},
               {"WITH STATES", true},
               {"VERSION", true},
               {"FETCHES", true},
               {"STATES"},
               {"CACHED BY"}});

  for (const ChunkView& chunk : chunks.chunks) {
    const char* const states = chunk.states_on_gpu     ? "gpu"
                               : chunk.weights_on_nvme ? "nvme, weights too"
                               : chunk.states_on_nvme  ? "nvme"
                                                       : "host";
    table.Add({std::to_string(chunk.job), std::to_string(chunk.chunk), chunk.state,
               std::to_string(chunk.data_group), FormatCount(chunk.elements), WeightsText(chunk),
               FormatBytes(chunk.bytes), std::to_string(chunk.version),
               std::to_string(chunk.fetches), states, Ranks(chunk.ranks_cached)},
              chunk.node);
  }

  return table.Lines(style.header);
}

Lines RenderTensors(const TensorsView& tensors, const Style& style) {
  Table table({{"JOB", true},
               {"CHUNK", true},
               {"AT", true},
               {"ELEMENTS", true},
               {"STATE"},
               {"STATES"},
               {"VERSION", true},
               {"CACHED BY"},
               {"DIMS"},
               {"TENSOR"}});

  for (const TensorView& tensor : tensors.tensors) {
    std::string dims;
    for (const uint64_t dim : tensor.dims) dims += (dims.empty() ? "" : "x") + std::to_string(dim);
    table.Add({std::to_string(tensor.job), std::to_string(tensor.chunk),
               std::to_string(tensor.element_begin), FormatCount(tensor.elements), tensor.state,
               tensor.states_on_gpu    ? "gpu"
               : tensor.states_on_nvme ? "nvme"
                                       : "host",
               std::to_string(tensor.version), Ranks(tensor.ranks_cached),
               dims.empty() ? "-" : dims, Printable(tensor.name)},
              tensor.node);
  }

  return table.Lines(style.header);
}

Lines RenderTopology(const TopologyView& topology, const Style& style) {
  // A machine from a file has no pool and no workers.
  const auto has_pool = [](const TopologyNode& node) { return node.pool_bytes > 0; };
  const bool pool = std::any_of(topology.nodes.begin(), topology.nodes.end(), has_pool);
  Table nodes({{"NODE", true}, {"MEMORY", true}, {"POOL", true}, {"WORKERS", true}, {"CPUS"}});
  for (const TopologyNode& node : topology.nodes) {
    nodes.Add({std::to_string(node.id), FormatBytes(node.memory_bytes),
               pool ? FormatBytes(node.pool_bytes) : "-", std::to_string(node.workers), node.cpus});
  }
  Lines lines = nodes.Lines(style.header);
  Table devices({{"ROOT"}, {"NODE", true}, {"KIND"}, {"ADDRESS"}, {"STAGING", true}, {"NAME"}});

  for (const TopologyRoot& root : topology.roots) {
    for (const TopologyDevice& device : root.devices) {
      devices.Add({root.name, root.node ? std::to_string(*root.node) : "?", device.kind,
                   device.address, StagingOf(topology, device), device.name});
    }
  }
  lines.emplace_back();
  if (topology.roots.empty()) {
    lines.push_back("no GPU and no NVMe drive");
  } else {
    for (std::string& line : devices.Lines(style.header)) lines.push_back(std::move(line));
  }

  std::string cpus;
  for (const uint64_t cpu : topology.worker_cpus)
    cpus += (cpus.empty() ? "" : ",") + std::to_string(cpu);
  lines.emplace_back();
  lines.push_back("pool: " + Printable(topology.pool_spread) +
                  "   workers: " + (cpus.empty() ? "not pinned" : "CPUs " + cpus) +
                  "   topology: " + Printable(topology.source));
  return lines;
}

Lines RenderConfig(const ConfigView& config, const Style& style) {
  Table settings({{"SETTING"}, {"VALUE"}, {"DEFAULT"}, {"RELOADS"}, {"ORIGIN"}});
  for (const SettingView& setting : config.settings) {
    settings.Add({setting.key, Printable(setting.value), setting.fallback,
                  setting.reloads ? "yes" : "-", Printable(setting.origin)},
                 setting.node);
  }

  Lines lines = settings.Lines(style.header);
  if (config.quotas.empty()) return lines;
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  Table quotas({{"QUOTA OF"},
                {"GUARANTEE", true},
                {"LIMIT", true},
                {"NVME", true},
                {"WEIGHT", true},
                {"PRIORITY"},
                {"ORIGIN"}});

  for (const ConfiguredQuotaView& quota : config.quotas) {
    quotas.Add({Printable(quota.match), or_dash(quota.guarantee), or_dash(quota.limit),
                or_dash(quota.nvme_limit), std::to_string(quota.weight), quota.priority,
                Printable(quota.origin)},
               quota.node);
  }
  lines.emplace_back();
  for (std::string& line : quotas.Lines(style.header)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace tidepool::client
