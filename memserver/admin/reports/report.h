// Reports: the JSON documents of the admin socket, made from one immutable snapshot
// (docs/admin_api.md lists every field).
//
// Any thread; pure functions. Keys are snake_case, sizes are bytes, times are seconds, numbers are
// never strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memserver/admin/snapshot_source.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// Facts that do not change while the daemon runs; the composition root fills them in.
struct ServerFacts {
  std::string version;               // of the release, "0.1.0"
  uint32_t abi = 0;                  // of the shared-memory protocol
  std::string build;                 // compiler and build type
  std::vector<std::string> devices;  // DeviceNames()
  std::string socket_dir;
  int32_t pid = 0;
  // The answer of /v1/topology: the machine, and the placements planned on it.
  std::string topology = "{}";
  std::string config_schema = "{}";  // the answer of /v1/config/schema: every setting
};

// "starting", "ready" or "draining".
const char* StateOf(const Snapshot& snapshot);

// The bodies of `/v1/version` and `/v1/status`.
std::string VersionReport(const ServerFacts& facts);
std::string StatusReport(const SnapshotLook& look, const ServerFacts& facts);
// All jobs, without sessions and chunks.
std::string JobsReport(const Snapshot& snapshot);
// Accounts with their quotas, and the ranks that wait for room.
std::string QuotasReport(const Snapshot& snapshot);
// Each NVMe directory, its reads and writes, and the last scrub.
std::string NvmeReport(const Snapshot& snapshot);
// The current settings with their origins; optionally only those that are not the default.
std::string ConfigReport(const Snapshot& snapshot, bool only_changed);
// One job with its sessions.
std::string JobReport(const JobRow& job);
// The job's spans that ended at or after `since_ns`, and memserver's time now (spans/span_log.h).
std::string SpansReport(const JobRow& job, int64_t since_ns);
// What a column of the residency picture stands for. A layer is the common part of its tensors'
// names up to their first number ("h.3"), else up to their last component; an expert is named by
// its layer and number ("h.3 expert 5"), and what is in no expert by its layer.
enum class ResidencyBy : uint8_t { kChunk, kLayer, kExpert, kTensor, kJob };
// The residency picture of `jobs`, run-length encoded.
std::string ResidencyReport(const Snapshot& snapshot, const std::vector<const JobRow*>& jobs,
                            ResidencyBy by);

// A page of chunk rows. A cursor names the first chunk that was not shown yet.
struct ChunkPage {
  std::vector<const JobRow*> jobs;    // in order
  const ChunkState* state = nullptr;  // only chunks in this state, null for all
  // Only chunks that a rank holds ("rcache"), or whose states lie there ("host", "nvme"); empty for
  // all.
  std::string tier = {};
  JobId from_job = 0;  // where the page begins
  ChunkId from_chunk = 0;
  uint64_t limit = 0;
};
std::string ChunksReport(const ChunkPage& page);
// One chunk, as a row of a page.
std::string ChunkReport(const JobRow& job, ChunkId chunk);
// The tiers, their capacity, and how much of it each job uses.
std::string TiersReport(const Snapshot& snapshot);
// A screenful of text, for people without memctl.
std::string SummaryReport(const SnapshotLook& look);

// A page of parameters and their locations. A cursor names the first that was not shown yet.
struct TensorPage {
  std::vector<const JobRow*> jobs;    // in order
  std::string name = {};              // only names that contain this text
  std::optional<ChunkId> chunk = {};  // only parameters of this chunk
  JobId from_job = 0;                 // where the page begins
  uint64_t from_tensor = 0;
  uint64_t limit = 0;
};
std::string TensorsReport(const TensorPage& page);

}  // namespace tidepool::memserver
