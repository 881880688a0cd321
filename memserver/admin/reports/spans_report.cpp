// The answer of GET /v1/jobs/{job}/spans.
#include "base/text/json_writer.h"
#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {
namespace {

void WriteWho(const char* key, bool is_it, uint32_t number, JsonWriter* json) {
  json->Key(key);
  if (is_it) {
    json->Uint(number);
  } else {
    json->Null();
  }
}

}  // namespace

std::string SpansReport(const JobRow& job, int64_t since_ns) {
  const std::vector<Span> spans =
      job.spans != nullptr ? job.spans->Since(since_ns) : std::vector<Span>();
  JsonWriter json;
  json.BeginObject().Field("recording", job.spans != nullptr);
  json.Field("now_ns", job.spans != nullptr ? job.spans->NowNs() : int64_t{0});

  json.Key("spans").BeginArray();
  for (const Span& span : spans) {
    json.BeginObject().Field("what", NameOf(span.kind));
    const SpanWho who = WhoOf(span.kind);
    WriteWho("rank", who == SpanWho::kRank, span.by, &json);
    WriteWho("worker", who == SpanWho::kWorker, span.by, &json);
    WriteWho("drive", who == SpanWho::kDrive, span.by, &json);
    json.Field("chunk", span.chunk).Field("piece", span.piece);
    json.Field("begin_ns", span.begin_ns).Field("end_ns", span.end_ns).EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace tidepool::memserver
