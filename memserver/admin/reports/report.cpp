#include "memserver/admin/reports/report.h"

#include <algorithm>
#include <array>

#include "base/text/json_writer.h"

namespace tidepool::memserver {
namespace {

uint64_t SessionCount(const Snapshot& snapshot) {
  uint64_t count = 0;
  for (const JobRow& job : snapshot.jobs) count += job.sessions.size();
  return count;
}

void WriteQuota(const Quota& quota, JsonWriter* json) {
  json->Field("guarantee_bytes", quota.guarantee).Key("limit_bytes");
  quota.limit == kNoLimit ? json->Null() : json->Uint(quota.limit);
  json->Key("nvme_limit_bytes");
  quota.nvme_limit == kNoLimit ? json->Null() : json->Uint(quota.nvme_limit);
  json->Field("weight", quota.weight).Field("priority", NameOf(quota.priority));
}

void WriteWaiting(const WaitingRow& row, JsonWriter* json) {
  json->BeginObject()
      .Field("name", row.name)
      .Field("account", row.account)
      .Field("uid", row.uid)
      .Field("rank", row.rank);

  json->Field("pid", row.pid)
      .Field("priority", NameOf(row.priority))
      .Field("pool_bytes", row.pool_bytes);
  json->Field("rcache_bytes", row.rcache_bytes)
      .Field("waited_seconds", static_cast<double>(row.waited_ns) / kNsPerSecond);
  json->Field("why", row.why).EndObject();
}

// Percentiles cover the last 128 steps; null if nothing is known yet, or no rank has reported.
void WriteStepFigures(const JobRow& job, JsonWriter* json) {
  const auto number = [json](const char* key, bool known, double value) {
    json->Key(key);
    known ? json->Double(value) : json->Null();
  };
  const StepTimes& times = job.step_times;
  number("step_seconds_p50", times.count > 0, times.p50);
  number("step_seconds_p99", times.count > 0, times.p99);

  const shm::StepFacts facts = job.step_facts.value_or(shm::StepFacts{});
  number("loss", job.step_facts.has_value(), facts.loss);
  number("tokens_per_second", job.step_facts && job.step_seconds > 0,
         static_cast<double>(facts.tokens) / job.step_seconds);
  json->Field("cpus_shared", facts.cpus_shared);
}

void WriteJobFields(const JobRow& job, JsonWriter* json) {
  json->Field("id", job.job)
      .Field("name", job.name)
      .Field("uid", job.uid)
      .Field("state", job.state);

  json->Field("world", job.world)
      .Field("ranks_attached", static_cast<uint64_t>(job.sessions.size()));
  json->Field("dtype", NameOf(job.dtype))
      .Field("version", job.version)
      .Field("parameters", job.parameters);
  json->Field("pool_bytes", job.pool_bytes).Field("frozen_bytes", job.frozen_bytes);
  json->Field("nvme_bytes", job.nvme_bytes)
      .Field("chunks_spilled", job.chunks_spilled)
      .Field("chunks_demoted", job.chunks_demoted);
  if (job.chunks_on_gpu > 0)
    json->Field("gpu_bytes", job.gpu_bytes).Field("chunks_on_gpu", job.chunks_on_gpu);

  json->Field("chunks_weights_spilled", job.chunks_weights_spilled)
      .Field("weight_slots", job.weight_slots);
  json->Field("weights_filled", job.weights_filled);
  json->Field("rcache_bytes", job.rcache_bytes)
      .Field("rank_rcache_bytes", job.spec == nullptr ? 0 : job.spec->rcache_bytes)
      .Field("suspended", job.suspended);

  json->Field("lease_seconds", static_cast<double>(job.lease_ns) / kNsPerSecond).Key("kept_until");
  job.kept_until == 0 || job.kept_until == INT64_MAX
      ? json->Null()
      : json->Uint(static_cast<uint64_t>(job.kept_until));
  json->Field("optimizer_bytes", job.optimizer_bytes)
      .Field("account", job.account)
      .Key("quota")
      .BeginObject();

  WriteQuota(job.quota, json);
  json->EndObject();

  json->Field("step_seconds", job.step_seconds)
      .Field("grad_norm", job.grad_norm)
      .Field("steps_skipped", job.steps_skipped);
  WriteStepFigures(job, json);
  std::array<uint64_t, kChunkStates.size()> counts{};
  for (const ChunkRow& chunk : job.chunks) ++counts[static_cast<size_t>(chunk.state)];
  json->Field("chunks", static_cast<uint64_t>(job.chunks.size())).Key("chunk_states").BeginObject();
  for (const ChunkState state : kChunkStates)
    json->Field(NameOf(state), counts[static_cast<size_t>(state)]);
  json->EndObject();
}

void WriteGpu(const GpuRow& gpu, JsonWriter* json) {
  json->BeginObject()
      .Field("name", gpu.name)
      .Field("model", gpu.model)
      .Field("uuid", gpu.uuid)
      .Field("form", gpu.form);
  if (gpu.state_bytes > 0) json->Field("state_bytes", gpu.state_bytes);
  json->Field("note", gpu.note)
      .Field("bytes", gpu.bytes)
      .Field("bytes_free", gpu.bytes_free)
      .Field("bytes_taken", gpu.bytes_taken);

  json->Field("pool_bytes", gpu.pool_bytes)
      .Field("pinned_bytes", gpu.pinned_bytes)
      .Field("pin_seconds", gpu.pin_seconds);
  json->Field("pin_failure", gpu.pin_failure)
      .Field("failure", gpu.failure)
      .Field("sessions", gpu.sessions);
  json->Field("host_to_device_bytes", gpu.bytes_h2d).Field("device_to_host_bytes", gpu.bytes_d2h);
  json->Field("copies_unpinned", gpu.copies_unpinned).EndObject();
}

void WriteSession(const SessionRow& session, JsonWriter* json) {
  json->BeginObject()
      .Field("id", session.session)
      .Field("rank", session.rank)
      .Field("pid", session.pid);
  json->Field("rcache_bytes", session.rcache_bytes);
  json->Field("host_to_device_bytes", session.bytes_h2d)
      .Field("device_to_host_bytes", session.bytes_d2h);
  json->Field("requests", session.requests).Field("requests_parked", session.requests_parked);

  json->Key("wait_seconds").BeginObject();
  for (const RequestWaitKind& kind : kRequestWaitKinds)
    json->Field(kind.name, static_cast<double>(session.waits.*kind.ns) / kNsPerSecond);
  json->EndObject().EndObject();
}

void WriteChunk(const JobRow& job, ChunkId id, JsonWriter* json) {
  const ChunkRow& chunk = job.chunks[id];
  json->BeginObject().Field("job", job.job).Field("chunk", id).Field("state", NameOf(chunk.state));
  json->Field("data_group", chunk.data_group)
      .Field("elements", chunk.elements)
      .Field("dtype", NameOf(chunk.dtype))
      .Field("bytes", chunk.bytes);
  json->Field("version", chunk.version).Field("fetches", chunk.fetches);
  json->Field("states_on_nvme", chunk.spilled).Field("weights_on_nvme", chunk.weights_spilled);
  if (chunk.on_gpu) json->Field("states_on_gpu", true);

  json->Key("ranks_cached").BeginArray();
  for (Rank rank = 0; rank < 64; ++rank) {
    if ((chunk.ranks_cached >> rank & 1) != 0) json->Uint(rank);
  }
  json->EndArray().EndObject();
}

bool Fits(const ChunkRow& chunk, const ChunkPage& page) {
  if (page.state != nullptr && chunk.state != *page.state) return false;
  if (page.tier == "rcache") return chunk.ranks_cached != 0;
  if (page.tier == "gpu") return chunk.on_gpu;
  return page.tier.empty() ||
         (page.tier == "nvme" ? chunk.spilled : !chunk.spilled && !chunk.on_gpu);
}

void WriteSetting(const ConfigRow& row, JsonWriter* json) {
  json->BeginObject().Field("key", row.key).Field("value", row.value).Field("origin", row.origin);
  json->Field("default", row.fallback).Field("reloads", row.is_live).EndObject();
}

void WriteConfiguredQuota(const QuotaConfigRow& row, JsonWriter* json) {
  json->BeginObject().Field("match", row.match).Field("origin", row.origin);
  for (const auto& [key, text] :
       {std::pair("guarantee", &row.guarantee), std::pair("limit", &row.limit),
        std::pair("nvme_limit", &row.nvme_limit)}) {
    if (!text->empty()) json->Field(key, *text);
  }
  json->Field("weight", row.weight).Field("priority", NameOf(row.priority)).EndObject();
}

}  // namespace

const char* StateOf(const Snapshot& snapshot) {
  return snapshot.draining ? "draining" : snapshot.ready ? "ready" : "starting";
}

std::string VersionReport(const ServerFacts& facts) {
  JsonWriter json;
  json.BeginObject()
      .Field("name", "tidepool")
      .Field("version", facts.version)
      .Field("abi", facts.abi)
      .Field("build", facts.build);
  json.Key("devices").BeginArray();
  for (const std::string& device : facts.devices) json.String(device);
  json.EndArray().Field("pid", facts.pid).EndObject();
  return json.Take();
}

std::string StatusReport(const SnapshotLook& look, const ServerFacts& facts) {
  const Snapshot& now = *look.snapshot;
  JsonWriter json;
  json.BeginObject()
      .Field("state", StateOf(now))
      .Field("version", facts.version)
      .Field("pid", facts.pid);

  json.Field("socket_dir", facts.socket_dir)
      .Field("uptime_seconds", static_cast<double>(now.uptime_ns) / kNsPerSecond);
  json.Field("snapshot_age_seconds", look.age_seconds);
  json.Key("serve_loop")
      .BeginObject()
      .Field("turns", now.turns)
      .Field("long_turns", now.long_turns);
  json.Field("longest_turn_seconds", static_cast<double>(now.longest_turn_ns) / kNsPerSecond)
      .Field("silent_seconds", look.silent_seconds)
      .EndObject();
  json.Key("pool").BeginObject().Field("bytes", now.pool_bytes).Field("bytes_used", now.pool_used);

  json.Field("bytes_free", now.pool_bytes - now.pool_used);
  json.Field("frozen_bytes", now.pool_frozen).Field("frozen_chunks", now.frozen_chunks);
  json.Field("huge_page_bytes", now.pool_huge_bytes)
      .Field("touch_seconds", now.pool_touch_seconds)
      .EndObject();
  json.Key("nvme")
      .BeginObject()
      .Field("bytes", now.nvme.bytes)
      .Field("bytes_used", now.nvme.bytes_used);
  json.Field("bytes_read", now.nvme.bytes_read)
      .Field("bytes_written", now.nvme.bytes_written)
      .Field("repetitions", now.nvme.repetitions);

  json.Field("transfers", now.nvme.in_flight)
      .Field("blocks_stalled", now.nvme.stalled)
      .Field("failed_directory", now.nvme.failed);
  json.Key("directories").BeginArray();
  for (const NvmeDirectoryRow& directory : now.nvme.directories) json.String(directory.path);
  json.EndArray().EndObject();
  json.Key("rcache")
      .BeginObject()
      .Field("bytes_limit", now.rcache_limit)
      .Field("bytes_used", now.rcache_used)
      .EndObject();

  json.Key("gpus").BeginArray();
  for (const GpuRow& gpu : now.gpus) WriteGpu(gpu, &json);
  json.EndArray();
  json.Key("transfers")
      .BeginObject()
      .Field("host_to_device_bytes", now.bytes_h2d)
      .Field("device_to_host_bytes", now.bytes_d2h)
      .EndObject();

  json.Key("optimizer")
      .BeginObject()
      .Field("workers", now.workers)
      .Field("parameters_updated", now.parameters_updated);
  json.Field("prefetch", now.prefetch).EndObject();
  json.Field("jobs", static_cast<uint64_t>(now.jobs.size())).Field("sessions", SessionCount(now));
  json.Field("sessions_ended_badly", now.sessions_ended_badly).EndObject();
  return json.Take();
}

std::string JobsReport(const Snapshot& snapshot) {
  JsonWriter json;
  json.BeginObject().Key("jobs").BeginArray();
  for (const JobRow& job : snapshot.jobs) {
    json.BeginObject();
    WriteJobFields(job, &json);
    json.EndObject();
  }

  json.EndArray().Key("lost").BeginArray();
  for (const LostJob& job : snapshot.lost) {
    json.BeginObject().Field("name", job.name).Field("uid", job.uid).Field("version", job.version);
    json.Field("at", static_cast<uint64_t>(job.at)).Field("why", job.why).EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

std::string QuotasReport(const Snapshot& snapshot) {
  JsonWriter json;
  json.BeginObject().Key("accounts").BeginArray();
  for (const AccountRow& row : snapshot.accounts) {
    json.BeginObject().Field("account", row.account);
    WriteQuota(row.quota, &json);
    json.Field("bytes_used", row.used)
        .Field("bytes_room", row.room)
        .Field("nvme_bytes_used", row.nvme_used)
        .EndObject();
  }

  json.EndArray().Key("waiting").BeginArray();
  for (const WaitingRow& row : snapshot.waiting) WriteWaiting(row, &json);
  json.EndArray().EndObject();
  return json.Take();
}

std::string JobReport(const JobRow& job) {
  JsonWriter json;
  json.BeginObject();
  WriteJobFields(job, &json);
  json.Key("sessions").BeginArray();
  for (const SessionRow& session : job.sessions) WriteSession(session, &json);
  json.EndArray().EndObject();
  return json.Take();
}

std::string ChunkReport(const JobRow& job, ChunkId chunk) {
  JsonWriter json;
  WriteChunk(job, chunk, &json);
  return json.Take();
}

std::string ChunksReport(const ChunkPage& page) {
  JsonWriter json;
  std::string next;
  uint64_t shown = 0;
  json.BeginObject().Key("chunks").BeginArray();
  for (const JobRow* job : page.jobs) {
    if (job->job < page.from_job) continue;

    const ChunkId first = job->job == page.from_job ? page.from_chunk : 0;
    for (ChunkId id = first; id < job->chunks.size() && next.empty(); ++id) {
      if (!Fits(job->chunks[id], page)) continue;
      if (shown == page.limit) {
        next = std::to_string(job->job) + ":" + std::to_string(id);
      } else {
        WriteChunk(*job, id, &json);
        ++shown;
      }
    }
  }

  json.EndArray().Key("next_cursor");
  next.empty() ? json.Null() : json.String(next);
  return json.EndObject().Take();
}

std::string ConfigReport(const Snapshot& snapshot, bool only_changed) {
  const ConfigRows none;
  const ConfigRows& rows = snapshot.config == nullptr ? none : *snapshot.config;

  JsonWriter json;
  json.BeginObject().Key("file");
  rows.file.empty() ? json.Null() : json.String(rows.file);
  json.Key("settings").BeginArray();
  for (const ConfigRow& row : rows.settings) {
    if (!only_changed || row.value != row.fallback) WriteSetting(row, &json);
  }

  json.EndArray().Key("quotas").BeginArray();
  for (const QuotaConfigRow& row : rows.quotas) WriteConfiguredQuota(row, &json);
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace tidepool::memserver
