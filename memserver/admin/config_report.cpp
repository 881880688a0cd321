// The answers of /v1/config and /v1/config/diff.
#include "base/text/json_writer.h"
#include "memserver/admin/report.h"

namespace tidepool::memserver {
namespace {

void WriteSetting(const ConfigRow& row, JsonWriter* json) {
  json->BeginObject().Field("key", row.key).Field("value", row.value).Field("origin", row.origin);
  json->Field("default", row.fallback).Field("reloads", row.is_live).EndObject();
}

void WriteQuota(const QuotaConfigRow& row, JsonWriter* json) {
  json->BeginObject().Field("match", row.match).Field("origin", row.origin);
  for (const auto& [key, text] :
       {std::pair("guarantee", &row.guarantee), std::pair("limit", &row.limit),
        std::pair("nvme_limit", &row.nvme_limit)}) {
    if (!text->empty()) json->Field(key, *text);
  }
  json->Field("weight", row.weight).Field("priority", NameOf(row.priority)).EndObject();
}

}  // namespace

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
  for (const QuotaConfigRow& row : rows.quotas) WriteQuota(row, &json);
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace tidepool::memserver
