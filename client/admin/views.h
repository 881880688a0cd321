// Views: the admin socket's JSON documents as plain structs, for memctl.
//
// `node` of a row: the machine it describes, if several were asked; else empty.
//
// One thread; value types. A missing or wrongly typed field is an error: the document comes from
// another release, and a table with silent gaps would mislead. Unknown fields are ignored. The
// doors to Boost.JSON in this room are views.cpp and view_fields.cpp.
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

// A GPU on which a rank has brought memory.
struct GpuView {
  std::string name, model, uuid, form;        // form: how its memory is exported
  std::string note, pin_failure, failure;     // empty: nothing to report
  uint64_t bytes = 0, taken = 0;              // taken by memserver; 0: unknown
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
  uint64_t frozen_bytes = 0, frozen_chunks = 0;  // part of the used pool, each chunk once
  uint64_t pool_bytes = 0, pool_used = 0, rcache_limit = 0, rcache_used = 0;
  uint64_t nvme_bytes = 0, nvme_used = 0, nvme_read = 0, nvme_written = 0, nvme_repetitions = 0,
           nvme_stalled = 0;
  std::string nvme_failed;  // a directory that accepts no new jobs
  std::vector<GpuView> gpus;
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  uint64_t workers = 0, parameters_updated = 0;
  uint64_t prefetch = 0;  // prefetch distance of the update, in elements
  uint64_t jobs = 0, sessions = 0, sessions_ended_badly = 0;
};

// Quota of a job or an account.
struct QuotaView {
  uint64_t guarantee = 0, weight = 1;
  std::optional<uint64_t> limit, nvme_limit;
  std::string priority;
};

// A row of `/v1/jobs`.
struct JobView {
  uint64_t id = 0, world = 0, ranks_attached = 0, version = 0, parameters = 0;
  uint64_t pool_bytes = 0, nvme_bytes = 0, rcache_bytes = 0, steps_skipped = 0;
  uint64_t frozen_bytes = 0;  // shared with the user's other jobs
  std::string name, state, dtype;
  double step_seconds = 0, grad_norm = 0;
  bool suspended = false;
  double lease_seconds = 0;            // how long it is kept without ranks
  std::optional<uint64_t> kept_until;  // if it has no ranks, in seconds since 1970
  uint64_t optimizer_bytes = 0;        // memory traffic since memserver started
  uint64_t uid = 0, chunks = 0, chunks_spilled = 0;
  std::string account;
  QuotaView quota;
  // 0 and nullopt while unknown, or if no rank reports them.
  double step_seconds_p50 = 0, step_seconds_p99 = 0, tokens_per_second = 0;
  std::optional<double> loss;
  bool cpus_shared = false;
  std::string node = {};
};

// A job whose states memserver had to drop.
struct LostJobView {
  uint64_t uid = 0, version = 0;  // sealed steps
  uint64_t at = 0;                // seconds since 1970
  std::string name, why;
};

// A row of `/v1/chunks`.
struct ChunkView {
  uint64_t job = 0, chunk = 0, data_group = 0, elements = 0, version = 0, fetches = 0;
  uint64_t bytes = 0;  // total: weights, gradients and states
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

// One memory tier or rCache, and its content by column.
struct ResidencyRow {
  std::string place;  // "host pool", "NVMe"; empty: the rCache of `rank`
  uint64_t rank = 0;
  uint64_t bytes_used = 0;   // pool rows
  uint64_t chunks_held = 0;  // rCache rows
  uint64_t bytes_limit = 0;
  std::string letters;                                 // one per column
  std::vector<std::pair<char, uint64_t>> chunks = {};  // number of chunks per letter
};

// A column that is not a chunk: a layer, an expert, a tensor or a job.
struct ResidencyColumn {
  std::string name;
  uint64_t chunks = 0, bytes = 0;
  // By expert: the last step for which a rank fetched one of its chunks; 0: none yet.
  uint64_t fetched_step = 0;
};

// Neighbouring chunks that hold neighbouring experts of a layer, both ends included.
struct ResidencyExperts {
  std::string layer;
  uint64_t first_expert = 0, last_expert = 0, first_chunk = 0, last_chunk = 0;
  uint64_t chunks_fetched = 0;  // for the step sealed last, or the open one
};

// A job with its rows.
struct ResidencyJob {
  uint64_t id = 0, version = 0, chunks = 0, chunk_bytes_max = 0;
  std::string name, state, phase;  // phase of the open step; empty if there is none
  uint64_t chunks_done = 0, micro_batch = 0, micro_batches = 0;
  uint64_t fetches = 0, fetches_waited = 0, bytes_fetched = 0;  // in the last sealed step
  double fetch_wait_seconds = 0;                                // of those that waited, together
  double step_seconds = 0;
  std::vector<ResidencyColumn> columns;  // empty: one column per chunk
  // With one column per chunk; empty for a model without experts, or from an earlier release.
  std::vector<ResidencyExperts> experts;
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

// Where a GPU's staging memory is.
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

// A damaged piece found by a scrub.
struct DamageView {
  std::string name, directory, what;
  uint64_t job = 0, chunk = 0, piece = 0, offset = 0;
};

// A piece that a drive failed to write.
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

// Demotions: jobs moved to NVMe to make room for others.
struct DemotionView {
  std::string name;  // of the job in progress; empty if its number is 0
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

// A rank waiting for room.
struct WaitingView {
  std::string name, account, priority, why;
  uint64_t rank = 0, pid = 0, pool_bytes = 0, rcache_bytes = 0;
  double waited_seconds = 0;
  std::string node = {};
};

// `/v1/quotas`.
struct QuotasView {
  std::vector<AccountView> accounts;
  std::vector<WaitingView> waiting;  // in serving order
};

// A check of `/v1/health`.
struct HealthCheckView {
  std::string code, severity, summary;  // severity: "ok", "warn", "error"
  std::vector<std::string> detail;
  std::string remedy;  // empty if the check is ok
  double muted_seconds = 0;
  std::string node = {};
};

// `/v1/health`.
struct HealthView {
  std::string status;  // severity of the worst check
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
  // As written in the file; empty: not given.
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
  std::string fields;  // the other fields, as "job=1 name=gpt"
};

// Each of these fails with kHandshakeBad (not JSON, or a field is missing or has another type).
Result<VersionView> ReadVersion(std::string_view json);
Result<StatusView> ReadStatus(std::string_view json);
Result<std::vector<JobView>> ReadJobs(std::string_view json);
Result<JobView> ReadOneJob(std::string_view json);
// Reads the same answer as ReadJobs; empty for an answer of an earlier release.
Result<std::vector<LostJobView>> ReadLostJobs(std::string_view json);
Result<ChunksView> ReadChunks(std::string_view json);
Result<TensorsView> ReadTensors(std::string_view json);
Result<ResidencyView> ReadResidency(std::string_view json);
Result<TopologyView> ReadTopology(std::string_view json);
Result<QuotasView> ReadQuotas(std::string_view json);
Result<HealthView> ReadHealth(std::string_view json);
// One object per line.
Result<std::vector<EventView>> ReadEvents(std::string_view ndjson);
Result<NvmeView> ReadNvme(std::string_view json);
Result<ConfigView> ReadConfig(std::string_view json);
// The keys of the settings that a reload has applied, or would apply.
Result<std::vector<std::string>> ReadApplied(std::string_view json, const char* list = "applied");

// The error in a problem document (RFC 9457); kHandshakeBad if it is not one.
Status ReadProblem(std::string_view json);

}  // namespace tidepool::client
