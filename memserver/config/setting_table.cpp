// The table of all settings: how each is parsed, its default for users, and its line in --help.
#include <algorithm>
#include <array>
#include <utility>

#include "base/system/loopback.h"
#include "base/units.h"
#include "memserver/config/config.h"
#include "memserver/config/setting_values.h"
#include "memserver/update/tuning.h"

namespace tidepool::memserver {
namespace {

Status ParseSocketDir(const std::string& text, Config* config) {
  config->socket_dir = text == "auto" ? "" : text;
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control))
    return Expected(text, "paths without control characters");
  if (text == "auto" || (!text.empty() && text.front() == '/')) return Status();
  return Expected(text, "auto, and absolute paths");
}

// Checks only the form; shares are resolved when the server starts.
Status ParsePool(const std::string& text, Config* config) {
  config->pool.size = text;
  return ParseSizeOrShare(text, kGiB).status();
}
Status ParseRcacheLimit(const std::string& text, Config* config) {
  config->rcache_limit = text;
  return ParseSizeOrShare(text, kGiB).status();
}
Status ParseHuge(const std::string& text, Config* config) {
  config->pool.huge_pages = text != "off";
  return ParseChoice<bool, 3>(text, {{{"auto", false}, {"off", false}, {"reserved", true}}},
                              &config->pool.reserved_pages);
}
Status ParsePoolNodes(const std::string& text, Config* config) {
  return ParseListOrAuto(text, &config->pool.nodes);
}
Status ParsePoolSpread(const std::string& text, Config* config) {
  using device::PoolSpread;
  return ParseChoice<PoolSpread, 2>(
      text, {{{"interleave", PoolSpread::kInterleave}, {"pieces", PoolSpread::kPieces}}},
      &config->pool.spread);
}
Status ParseWorkerCpus(const std::string& text, Config* config) {
  return ParseListOrAuto(text, &config->optimizer.cpus);
}
Status ParseTopology(const std::string& text, Config* config) {
  config->topology_file = text == "auto" ? "" : text;
  return text.empty() ? Expected(text, "auto, and paths of files") : Status();
}
Status ParseAdamThreads(const std::string& text, Config* config) {
  return ParseCountOrAuto(text, 1, 256, &config->optimizer.threads);
}
Status ParseCopyThreads(const std::string& text, Config* config) {
  config->copy.together = text != "auto";
  return ParseCountOrAuto(text, 0, 64, &config->copy.threads);
}
Status ParseGpu(const std::string& text, Config* config) {
  using Choice = std::pair<const char*, GpuUse>;
  constexpr std::array<Choice, 3> kChoices{Choice{"auto", GpuUse::kAtStart},
                                           Choice{"when-used", GpuUse::kWhenUsed},
                                           Choice{"none", GpuUse::kNone}};
  return ParseChoice<GpuUse, 3>(text, kChoices, &config->gpu.use);
}
Status ParseGpuDone(const std::string& text, Config* config) {
  using Way = std::optional<DoneBy>;
  return ParseChoice<Way, 3>(
      text, {{{"auto", Way()}, {"stream", DoneBy::kStream}, {"loop", DoneBy::kLoop}}},
      &config->gpu.done);
}
Status ParseIsa(const std::string& text, Config* config) {
  TP_ASSIGN_OR_RETURN(config->optimizer.isa, optim::IsaFromName(text));
  if (config->optimizer.isa <= optim::BestIsa()) return Status();
  return Status(ErrorId::kConfigBadValue, "this CPU does not have the instruction set " + text)
      .Why(std::string("its best one is ") + NameOf(optim::BestIsa()));
}
Status ParseTuning(const std::string& text, Config* config) {
  TP_ASSIGN_OR_RETURN(config->optimizer.tuning, TuningFromText(text));
  return Status();
}
Status ParseLease(const std::string& text, Config* config) {
  TP_ASSIGN_OR_RETURN(config->times.lease_ns, ParseDurationNs(text));
  return Status();
}
Status ParseSpin(const std::string& text, Config* config) {
  config->times.spin_ns = -1;
  if (text == "auto") return Status();
  TP_ASSIGN_OR_RETURN(config->times.spin_ns, ParseDurationNs(text));
  return Status();
}
Status ParseLogLevel(const std::string& text, Config* config) {
  return ParseChoice<LogLevel, 4>(text,
                                  {{{"debug", LogLevel::kDebug},
                                    {"info", LogLevel::kInfo},
                                    {"warn", LogLevel::kWarn},
                                    {"error", LogLevel::kError}}},
                                  &config->live.log_level);
}
Status ParseLogFormat(const std::string& text, Config* config) {
  return ParseChoice<LogFormat, 3>(
      text, {{{"auto", LogFormat::kAuto}, {"text", LogFormat::kText}, {"json", LogFormat::kJson}}},
      &config->log_format);
}
Status ParseJobsMax(const std::string& text, Config* config) {
  return ParseCount(text, 1, 1024, &config->live.jobs_max);
}
Status ParseSessionsMax(const std::string& text, Config* config) {
  return ParseCount(text, 1, 4096, &config->limits.sessions_max);
}

Status ParseMode(const std::string& text, Config* config) {
  return ParseChoice<bool, 2>(text, {{{"private", false}, {"service", true}}},
                              &config->admin.is_service);
}
Status ParseGroup(const std::string& text, Config* config) {
  config->admin.group = text;
  return text.empty() ? Expected(text, "names and numbers of groups") : Status();
}
Status ParseOperatorGroup(const std::string& text, Config* config) {
  config->admin.operator_group = text;
  return text.empty() ? Expected(text, "names and numbers of groups") : Status();
}
Status ParseMetricsListen(const std::string& text, Config* config) {
  config->admin.metrics_listen = text == "none" ? "" : text;
  if (text == "none" || IsLoopback(text)) return Status();
  return Expected(text, "none, and addresses of the loopback with a port, like 127.0.0.1:9465");
}
Status ParseUserSessionsMax(const std::string& text, Config* config) {
  return ParseCountOrAuto(text, 1, 4096, &config->limits.user_sessions_max);
}
Status ParseUserJobsMax(const std::string& text, Config* config) {
  return ParseCountOrAuto(text, 1, 1024, &config->limits.user_jobs_max);
}
Status ParseDefaultQuota(const std::string& text, Config* config) {
  config->quota.fallback = text;
  return ParseSizeOrShare(text, kGiB).status();
}

Status ParseKeeper(const std::string& text, Config* config) {
  return ParseChoice<KeeperChoice, 5>(text,
                                      {{{"auto", KeeperChoice::kAuto},
                                        {"process", KeeperChoice::kProcess},
                                        {"systemd", KeeperChoice::kSystemd},
                                        {"external", KeeperChoice::kExternal},
                                        {"none", KeeperChoice::kNone}}},
                                      &config->keeper.kind);
}
Status ParseMeasureRates(const std::string& text, Config* config) {
  return ParseChoice<bool, 2>(text, {{{"on", true}, {"off", false}}}, &config->measure_rates);
}
Status ParseRespawn(const std::string& text, Config* config) {
  return ParseChoice<bool, 2>(text, {{{"on", true}, {"off", false}}}, &config->keeper.respawn);
}

// "DIR:SIZE,DIR:SIZE": the size follows the last colon.
Status ParseNvme(const std::string& text, Config* config) {
  std::vector<NvmeDirectory>& all = config->nvme.directories;
  all.clear();
  if (text == "none") return Status();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string each = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = each.rfind(':');
    if (each.empty() || each.front() != '/' || colon == std::string::npos) {
      return Expected(each, "none, and /DIR:SIZE, several separated by commas");
    }

    const std::string path = each.substr(0, colon);
    TP_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(each.substr(colon + 1)));
    const bool twice = std::any_of(all.begin(), all.end(),
                                   [&path](const auto& other) { return other.path == path; });
    if (twice || bytes < kMiB) return Expected(each, "different directories, of 1 MiB at least");
    all.push_back({path, bytes});
  }
  if (all.size() <= kNvmeDirectoriesMax) return Status();
  return Expected(text, "at most " + std::to_string(kNvmeDirectoriesMax) + " directories");
}
Status ParseStatesOn(const std::string& text, Config* config) {
  return ParseChoice<StatesOn, 3>(
      text, {{{"auto", StatesOn::kAuto}, {"host", StatesOn::kHost}, {"nvme", StatesOn::kNvme}}},
      &config->live.states_on);
}
Status ParseIo(const std::string& text, Config* config) {
  return ParseChoice<bool, 2>(text, {{{"auto", true}, {"threads", false}}},
                              &config->nvme.allow_uring);
}

Status ParseNvmeBlock(const std::string& text, Config* config) {
  config->nvme.block_bytes = 0;
  if (text == "auto") return Status();
  TP_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  if (bytes < kPageBytes || bytes > nvme::kDriveBlockMax || bytes % kPageBytes != 0)
    return Expected(text, "auto, or 4KiB to 64MiB, in 4KiB");
  config->nvme.block_bytes = static_cast<uint32_t>(bytes);
  return Status();
}
Status ParseNvmeDepth(const std::string& text, Config* config) {
  config->nvme.depth = 0;
  return text == "auto" ? Status() : ParseCount(text, 1, nvme::kDriveDepthMax, &config->nvme.depth);
}

Status ParseNvmeDeadline(const std::string& text, Config* config) {
  TP_ASSIGN_OR_RETURN(config->nvme.deadline_ns, ParseDurationNs(text));
  if (config->nvme.deadline_ns < kNsPerSecond || config->nvme.deadline_ns > 3600 * kNsPerSecond)
    return Expected(text, "durations from 1s to 1h");
  return Status();
}

constexpr std::array<Setting, 36> kSettings{{
    {"--socket-dir", "socket_dir", "DIR", "auto",
     "directory of the sockets; auto: /run/tidepool, $XDG_RUNTIME_DIR/tidepool or "
     "/tmp/tidepool-UID",
     ParseSocketDir},
    {"--pool", "pool.size", "SIZE|%", "50%",
     "host memory for all jobs, or a share of the memory that is available at start", ParsePool},
    {"--huge", "pool.huge", "auto|off|reserved", "auto",
     "2 MiB pages for the pool: auto asks the system for them, reserved takes those set aside by "
     "vm.nr_hugepages",
     ParseHuge},
    {"--pool-nodes", "pool.nodes", "LIST|auto", "auto",
     "NUMA nodes of the pool, as in 0-1; auto: all that have memory and CPUs", ParsePoolNodes},
    {"--pool-spread", "pool.spread", "interleave|pieces", "interleave",
     "how the pool lies on its nodes: page by page, or in one piece for each", ParsePoolSpread},
    {"--nvme", "nvme.directories", "DIR:SIZE", "none",
     "a directory on a drive for states that do not fit the pool, and how much of it; several: "
     "repeat it, or separate by commas",
     ParseNvme},
    {"--states-on", "nvme.states_on", "auto|host|nvme", "auto",
     "where new jobs have their optimizer states; auto: on the host, and on NVMe what does not fit",
     ParseStatesOn, true},
    {"--nvme-io", "nvme.io", "auto|threads", "auto",
     "auto: io_uring where the system allows it, else threads", ParseIo},
    {"--nvme-block", "nvme.block", "SIZE|auto", "auto",
     "bytes of one read or write; auto: what `memserver bench nvme DIR` has found out and written "
     "there, else 1MiB",
     ParseNvmeBlock},
    {"--nvme-depth", "nvme.depth", "N|auto", "auto",
     "reads and writes that each drive has at once; auto: likewise, else 64", ParseNvmeDepth},
    {"--nvme-deadline", "nvme.deadline", "DURATION", "30s",
     "a drive that does not answer for so long is named; the jobs that wait for it end after ten "
     "times as long",
     ParseNvmeDeadline},
    {"--rcache-limit", "rcache.limit", "SIZE|%", "25%",
     "memory of the rCaches of all trainers on the host device", ParseRcacheLimit},
    {"--adam-threads", "optimizer.threads", "N|auto", "auto",
     "optimizer workers; auto: one per CPU, less one for the serve loop", ParseAdamThreads},
    {"--worker-cpus", "optimizer.cpus", "LIST|auto", "auto",
     "CPUs of the optimizer workers, as in 4-7; auto: on machines with more than 8 CPUs one a "
     "core, on all nodes of the pool",
     ParseWorkerCpus},
    {"--isa", "optimizer.isa", "auto|v2|v3|v4", "auto",
     "instruction set of the optimizer loops; the bits are the same with each", ParseIsa},
    {"--update-prefetch", "optimizer.prefetch", "auto|N", "auto",
     "how many elements ahead updates ask for memory, such as 512; auto: measured at start; the "
     "bits are the same with each",
     ParseTuning},
    {"--copy-threads", "copy.threads", "N|auto", "auto",
     "0: the serve loop copies; else each session has a copy thread, and N of them copy a large "
     "range together; auto: by the number of "
     "CPUs, and together only where that is measured to be faster",
     ParseCopyThreads},
    {"--gpu", "gpu", "auto|when-used|none", "auto",
     "trainers may bring memory of this machine's GPUs as their rCaches; auto: all GPUs are opened "
     "before memserver is ready; when-used: "
     "each "
     "by the first rank that brings memory of it, while other ranks may stand still; none: no GPU "
     "is used",
     ParseGpu},
    {"--gpu-done", "gpu_done", "auto|stream|loop", "auto",
     "who tells a trainer's GPU that a fetch is there: the stream of its copy, or the serve loop, "
     "which waits for no other process's "
     "kernels; "
     "auto: as is measured when a GPU is opened",
     ParseGpuDone},
    {"--lease", "lease", "DURATION", "8h",
     "how long a job whose trainers are gone is kept for a restart; 0s: not at all", ParseLease},
    {"--topology", "topology", "FILE|auto", "auto",
     "plan places for the machine of this file (hwloc's XML) instead of this one", ParseTopology},
    {"--spin", "spin", "DURATION|auto", "auto",
     "how long an idle serve loop looks for work before it sleeps, at most; it looks shorter while "
     "work is rare",
     ParseSpin},
    {"--keeper", "keeper.kind", "KIND", "auto",
     "who holds the jobs' memory while memserver is gone: process, systemd (its fd store), "
     "external (`memserver keeper`, which "
     "something else starts), none; auto: systemd where it offers, else process",
     ParseKeeper},
    {"--respawn", "keeper.respawn", "on|off", "on",
     "the keeper process starts memserver again after a crash", ParseRespawn},
    {"--measure-rates", "rates.measure", "on|off", "on",
     "measure how fast this machine copies and updates, once, in the background, when no job is "
     "there; trainer rates shows it",
     ParseMeasureRates},
    {"--default-quota", "jobs.default_quota", "SIZE|%", "100%",
     "what each user without a [[jobs.quota]] may take of the pool at most", ParseDefaultQuota,
     true},
    {"--mode", "admin.mode", "private|service", "private",
     "private: sockets for this user alone; service: for the members of a group", ParseMode},
    {"--group", "admin.group", "GROUP", "tidepool",
     "of service mode: whose members may start jobs and see their own", ParseGroup},
    {"--operator-group", "admin.operator_group", "GROUP", "tidepool-admin",
     "of service mode: whose members see and handle all jobs", ParseOperatorGroup},
    {"--metrics-listen", "metrics.listen", "none|ADDRESS", "none",
     "answer GET /metrics over TCP too, of whoever is on this machine: an address of the loopback, "
     "127.0.0.1:9465",
     ParseMetricsListen},
    {"--log-level", "log.level", "LEVEL", "info", "debug, info, warn or error", ParseLogLevel,
     true},
    {"--log-format", "log.format", "auto|text|json", "auto",
     "auto: text on a terminal, JSON lines otherwise", ParseLogFormat},
    {"--jobs-max", "limits.jobs", "N", "64", "jobs at once", ParseJobsMax, true},
    {"--sessions-max", "limits.sessions", "N", "256", "attached ranks at once", ParseSessionsMax},
    {"--user-sessions-max", "limits.sessions_per_user", "N|auto", "auto",
     "of one user; auto: all in private mode, half of them in service mode", ParseUserSessionsMax},
    {"--user-jobs-max", "limits.jobs_per_user", "N|auto", "auto",
     "jobs of one user, those without ranks too; auto: all in private mode, half of them in "
     "service mode",
     ParseUserJobsMax},
}};

}  // namespace

std::span<const Setting> Settings() {
  return kSettings;
}

}  // namespace tidepool::memserver
