// Views: what memctl reads out of the admin socket's JSON, as plain structs.
//
// `node` of a row: the machine that it describes, where several were asked; else empty.
//
// One thread; value types. A document with a missing or wrongly typed field is an error: it comes
// from another release, and a table with silent gaps would lie. Fields that this release does not
// know are ignored. The doors to Boost.JSON in this room are views.cpp and view_fields.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// `/v1/version`.
struct VersionView {
  std::string version, build;
  uint64_t abi = 0, pid = 0;
};

// A GPU whose memory a rank has brought.
struct GpuView {
  std::string name, model, uuid, form;        // form: how its memory leaves a process
  std::string note, pin_failure, failure;     // empty: nothing to say
  uint64_t bytes = 0, taken = 0;              // taken by memserver; 0: not known
  uint64_t pool_bytes = 0, pinned_bytes = 0;  // pinned: the part of the pool registered with it
  double pin_seconds = 0;
  uint64_t sessions = 0, bytes_h2d = 0, bytes_d2h = 0, copies_unpinned = 0;
};

// `/v1/status`.
struct StatusView {
  std::string state, version, socket_dir;
  uint64_t pid = 0;
  double uptime_seconds = 0, snapshot_age_seconds = 0, silent_seconds = 0;
  uint64_t turns = 0;
  uint64_t pool_huge_bytes = 0;
  double pool_touch_seconds = 0;
  uint64_t frozen_bytes = 0, frozen_chunks = 0;  // of the used pool, each once
  uint64_t pool_bytes = 0, pool_used = 0, rcache_limit = 0, rcache_used = 0;
  uint64_t nvme_bytes = 0, nvme_used = 0, nvme_read = 0, nvme_written = 0, nvme_repetitions = 0,
           nvme_stalled = 0;
  std::string nvme_failed;  // a directory that takes no new jobs
  std::vector<GpuView> gpus;
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  uint64_t workers = 0, parameters_updated = 0;
  uint64_t prefetch = 0;  // prefetch distance of the update, in elements
  uint64_t jobs = 0, sessions = 0, sessions_ended_badly = 0;
};

// What a job or an account may have.
struct QuotaView {
  uint64_t guarantee = 0, weight = 1;
  std::optional<uint64_t> limit, nvme_limit;
  std::string priority;
};

// A row of `/v1/jobs`.
struct JobView {
  uint64_t id = 0, world = 0, ranks_attached = 0, version = 0, parameters = 0;
  uint64_t pool_bytes = 0, nvme_bytes = 0, rcache_bytes = 0, steps_skipped = 0;
  uint64_t frozen_bytes = 0;  // that it shares with the user's other jobs
  std::string name, state, dtype;
  double step_seconds = 0, grad_norm = 0;
  bool suspended = false;
  double lease_seconds = 0;            // how long it is kept once its ranks are gone
  std::optional<uint64_t> kept_until;  // if without ranks, in seconds since 1970
  uint64_t optimizer_bytes = 0;        // of memory traffic, since memserver started
  uint64_t uid = 0, chunks = 0, chunks_spilled = 0;
  std::string account;
  QuotaView quota;
  // 0 and none where nothing is known yet, or no rank tells.
  double step_seconds_p50 = 0, step_seconds_p99 = 0, tokens_per_second = 0;
  std::optional<double> loss;
  bool cpus_shared = false;
  std::string node = {};
};

// A job whose states memserver had to give up.
struct LostJobView {
  uint64_t uid = 0, version = 0;  // sealed steps
  uint64_t at = 0;                // seconds since 1970
  std::string name, why;
};

// A row of `/v1/chunks`.
struct ChunkView {
  uint64_t job = 0, chunk = 0, data_group = 0, elements = 0, version = 0, fetches = 0;
  uint64_t bytes = 0;  // of all that it has: weights, gradients and states
  std::string state, dtype;
  bool states_on_nvme = false, states_on_gpu = false, weights_on_nvme = false;
  std::vector<uint64_t> ranks_cached;
  std::string node = {};
};

// A page of chunks.
struct ChunksView {
  std::vector<ChunkView> chunks;
  std::string next_cursor;  // empty on the last page
};

// A row of `/v1/tensors`.
struct TensorView {
  uint64_t job = 0, elements = 0, chunk = 0, element_begin = 0, version = 0;
  std::string name, state;
  bool states_on_nvme = false, states_on_gpu = false;
  std::vector<uint64_t> dims, ranks_cached;
  std::string node = {};
};

// A page of tensors.
struct TensorsView {
  std::vector<TensorView> tensors;
  std::string next_cursor;  // empty on the last page
};

// A place and what lies there, by column.
struct ResidencyRow {
  std::string place;  // "host pool", "NVMe"; empty: the rCache of `rank`
  uint64_t rank = 0;
  uint64_t bytes_used = 0;   // pool rows
  uint64_t chunks_held = 0;  // rCache rows
  uint64_t bytes_limit = 0;
  std::string letters;                                 // one a column
  std::vector<std::pair<char, uint64_t>> chunks = {};  // how many have each letter
};

// What a column is where it is not a chunk: a layer, a tensor or a job.
struct ResidencyColumn {
  std::string name;
  uint64_t chunks = 0, bytes = 0;
};

// A job with its places.
struct ResidencyJob {
  uint64_t id = 0, version = 0, chunks = 0, chunk_bytes_max = 0;
  std::string name, state, phase;  // phase of the open step; empty while there is none
  uint64_t chunks_done = 0, micro_batch = 0, micro_batches = 0;
  uint64_t fetches = 0, fetches_waited = 0, bytes_fetched = 0;  // of the last sealed step
  double step_seconds = 0;
  std::vector<ResidencyColumn> columns;  // empty: each chunk is one
  std::vector<ResidencyRow> rows;
};

// `/v1/residency`.
struct ResidencyView {
  std::string by = "chunk";
  std::vector<std::pair<char, std::string>> legend;  // in the server's order
  std::vector<ResidencyJob> jobs;
};

// A GPU or a drive.
struct TopologyDevice {
  std::string kind, name, address;
};

// A root complex with its devices.
struct TopologyRoot {
  std::string name;
  std::optional<uint64_t> node;
  std::vector<TopologyDevice> devices;
};

// A NUMA node.
struct TopologyNode {
  uint64_t id = 0, memory_bytes = 0, pool_bytes = 0, workers = 0;
  std::string cpus;
};

// Where the staging of a GPU lies.
struct TopologyStaging {
  std::string gpu;
  uint64_t node = 0;
};

// `/v1/topology`.
struct TopologyView {
  std::string source, pool_spread;
  std::vector<TopologyNode> nodes;
  std::vector<TopologyRoot> roots;
  std::vector<uint64_t> worker_cpus;
  std::vector<TopologyStaging> staging;
};

// An account of `/v1/quotas`.
struct AccountView {
  std::string account, priority;
  uint64_t guarantee = 0, weight = 0, used = 0, room = 0, nvme_used = 0;
  std::optional<uint64_t> limit, nvme_limit;
  std::string node = {};
};

// A directory of `/v1/nvme`.
struct NvmeDirectoryView {
  std::string path;
  uint64_t bytes = 0, used = 0, free = 0, read = 0, written = 0;
  bool failed = false;
};

// A piece that a scrub found damaged.
struct DamageView {
  std::string name, directory, what;
  uint64_t job = 0, chunk = 0, piece = 0, offset = 0;
};

// A piece that a drive did not take.
struct UnwrittenView {
  std::string name, directory, error;
  uint64_t job = 0, chunk = 0, piece = 0, offset = 0;
  bool in_pool = true;
};

// A request that a drive has not answered.
struct LateView {
  std::string name, directory;
  uint64_t job = 0, chunk = 0, piece = 0, offset = 0;
  double seconds = 0;
  bool write = false, lost = false;
};

// Jobs that went to NVMe because others needed their room.
struct DemotionView {
  std::string name;  // of the job in progress; none where its number is 0
  uint64_t job = 0, pieces = 0, pieces_written = 0;
  uint64_t moved = 0, failed = 0, dropped = 0, bytes_freed = 0;
};

// `/v1/nvme`.
struct NvmeView {
  std::string engine, scrub_state;  // "never", "running" or "done"
  uint64_t repetitions = 0, stalled = 0;
  uint64_t pieces = 0, pieces_checked = 0, bytes_checked = 0, damaged = 0;
  double seconds = 0;
  std::vector<NvmeDirectoryView> directories;
  std::vector<DamageView> damage;
  uint64_t writes_failed = 0, pieces_in_pool = 0, bytes_in_pool = 0, pieces_waiting = 0;
  std::vector<UnwrittenView> unwritten;
  std::vector<LateView> late;
  DemotionView demotion;
};

// A rank that waits for room.
struct WaitingView {
  std::string name, account, priority, why;
  uint64_t rank = 0, pid = 0, pool_bytes = 0, rcache_bytes = 0;
  double waited_seconds = 0;
  std::string node = {};
};

// `/v1/quotas`.
struct QuotasView {
  std::vector<AccountView> accounts;
  std::vector<WaitingView> waiting;  // in the order in which they are served
};

// A check of `/v1/health`.
struct HealthCheckView {
  std::string code, severity, summary;  // severity: "ok", "warn", "error"
  std::vector<std::string> detail;
  std::string remedy;  // empty when it is ok
  double muted_seconds = 0;
  std::string node = {};
};

// `/v1/health`.
struct HealthView {
  std::string status;  // of the worst check
  std::vector<HealthCheckView> checks;
};

// A setting of `/v1/config`.
struct SettingView {
  std::string key, value, origin, fallback;
  bool reloads = false;
  std::string node = {};
};

// A quota of the configuration file.
struct ConfiguredQuotaView {
  // As written; empty: not given.
  std::string match, origin, guarantee, limit, nvme_limit, priority;
  uint64_t weight = 1;
  std::string node = {};
};

// `/v1/config`.
struct ConfigView {
  std::string file;  // empty: none
  std::vector<SettingView> settings;
  std::vector<ConfiguredQuotaView> quotas;
};

// A line of memserver's log.
struct EventView {
  uint64_t number = 0;
  std::string time, level, message;
  std::string fields;  // the others, as "job=1 name=gpt"
};

// Each of these fails with kHandshakeBad (not JSON, a field is missing or of another kind).
Result<VersionView> ReadVersion(std::string_view json);
Result<StatusView> ReadStatus(std::string_view json);
Result<std::vector<JobView>> ReadJobs(std::string_view json);
Result<JobView> ReadOneJob(std::string_view json);
// Reads the same answer as ReadJobs; none where a former release gave it.
Result<std::vector<LostJobView>> ReadLostJobs(std::string_view json);
Result<ChunksView> ReadChunks(std::string_view json);
Result<TensorsView> ReadTensors(std::string_view json);
Result<ResidencyView> ReadResidency(std::string_view json);
Result<TopologyView> ReadTopology(std::string_view json);
Result<QuotasView> ReadQuotas(std::string_view json);
Result<HealthView> ReadHealth(std::string_view json);
// One object a line.
Result<std::vector<EventView>> ReadEvents(std::string_view ndjson);
Result<NvmeView> ReadNvme(std::string_view json);
Result<ConfigView> ReadConfig(std::string_view json);
// The settings, by key, that a reload has applied, or would.
Result<std::vector<std::string>> ReadApplied(std::string_view json, const char* list = "applied");

// The error in a problem document (RFC 9457); kHandshakeBad when it is not one.
Status ReadProblem(std::string_view json);

}  // namespace tidepool::client
