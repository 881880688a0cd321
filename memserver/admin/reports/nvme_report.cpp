// NvmeReport: the text of `/v1/nvme`: directories, slow and failed drives, the last scrub.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/text/json_writer.h"
#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {
namespace {

constexpr std::array kScrubStates{"never", "running", "done"};

void WriteScrub(const ScrubRow& scrub, JsonWriter* json) {
  json->BeginObject()
      .Field("state", kScrubStates[static_cast<size_t>(scrub.state)])
      .Field("seconds", scrub.seconds);
  json->Field("pieces", scrub.pieces)
      .Field("pieces_checked", scrub.pieces_checked)
      .Field("bytes_checked", scrub.bytes_checked);

  json->Field("repetitions", scrub.repetitions)
      .Field("pieces_damaged", scrub.damaged)
      .Key("damage")
      .BeginArray();
  for (const ScrubDamage& damage : scrub.damage) {
    json->BeginObject()
        .Field("job", damage.job)
        .Field("name", damage.name)
        .Field("chunk", damage.chunk)
        .Field("piece", damage.piece);

    json->Field("directory", damage.directory)
        .Field("offset", damage.offset)
        .Field("what", damage.what)
        .EndObject();
  }
  json->EndArray().EndObject();
}

void WriteDemotion(const DemotionRow& row, JsonWriter* json) {
  json->BeginObject().Field("job", row.job).Field("name", row.name).Field("pieces", row.pieces);
  json->Field("pieces_written", row.pieces_written)
      .Field("jobs_moved", row.done)
      .Field("jobs_failed", row.failed);
  json->Field("jobs_dropped", row.dropped).Field("pool_bytes_freed", row.bytes_freed).EndObject();
}

void WriteUnwritten(const NvmeRow& nvme, JsonWriter* json) {
  json->BeginObject()
      .Field("writes_failed", nvme.writes_failed)
      .Field("pieces_in_pool", nvme.pieces_in_pool);

  json->Field("bytes_in_pool", nvme.bytes_in_pool)
      .Field("pieces_waiting", nvme.pieces_waiting)
      .Key("pieces")
      .BeginArray();
  for (const UnwrittenRow& row : nvme.unwritten) {
    json->BeginObject()
        .Field("job", row.job)
        .Field("name", row.name)
        .Field("chunk", row.chunk)
        .Field("piece", row.piece);

    json->Field("directory", row.directory)
        .Field("offset", row.offset)
        .Field("error", std::strerror(row.error));
    json->Field("in_pool", row.in_pool).EndObject();
  }
  json->EndArray().EndObject();
}

}  // namespace

std::string NvmeReport(const Snapshot& snapshot) {
  const NvmeRow& nvme = snapshot.nvme;
  JsonWriter json;
  json.BeginObject()
      .Field("engine", nvme.engine)
      .Field("repetitions", nvme.repetitions)
      .Field("transfers", nvme.in_flight);

  json.Field("blocks_stalled", nvme.stalled).Key("directories").BeginArray();
  for (const NvmeDirectoryRow& row : nvme.directories) {
    json.BeginObject()
        .Field("path", row.path)
        .Field("bytes", row.bytes)
        .Field("bytes_used", row.bytes_used);
    json.Field("bytes_free", row.bytes - std::min(row.bytes, row.bytes_used))
        .Field("bytes_read", row.bytes_read);
    json.Field("bytes_written", row.bytes_written).Field("failed", row.failed).EndObject();
  }

  json.EndArray().Key("unwritten");
  WriteUnwritten(nvme, &json);
  json.Key("late").BeginArray();
  for (const LateRow& row : nvme.late) {
    json.BeginObject()
        .Field("job", row.job)
        .Field("name", row.name)
        .Field("chunk", row.chunk)
        .Field("piece", row.piece);

    json.Field("directory", row.directory)
        .Field("offset", row.offset)
        .Field("write", row.write)
        .Field("seconds", row.seconds);
    json.Field("lost", row.lost).EndObject();
  }
  json.EndArray().Key("demotion");
  WriteDemotion(nvme.demotion, &json);
  json.Key("scrub");
  WriteScrub(nvme.scrub, &json);
  return json.EndObject().Take();
}

}  // namespace tidepool::memserver
