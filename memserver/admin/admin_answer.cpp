#include "memserver/admin/admin_answer.h"

#include "base/log.h"
#include "base/text/json_writer.h"

namespace tidepool::memserver {
namespace {

const char* TitleOf(unsigned status) {
  switch (status) {
    // The request cannot be answered.
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 431: return "Request Header Fields Too Large";
    // The serve loop is absent, or too slow.
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Error";
  }
}

unsigned HttpStatusOf(const Status& error) {
  if (error.id() == ErrorId::kNotOwner) return 403;
  switch (error.code()) {
    case Code::kNotFound: return 404;
    case Code::kRefused: return 409;
    case Code::kUnavailable: return 503;
    case Code::kTimeout: return 504;
    default: return 400;
  }
}

}  // namespace

std::string EventLines(uint64_t* last, uint64_t most) {
  std::string lines;
  for (const LoggedLine& line : RecentLines(*last, most)) {
    lines += "{\"number\":" + std::to_string(line.number) + "," + line.json.substr(1) + "\n";
    *last = line.number;
  }
  return lines;
}

AdminAnswer Problem(unsigned http_status, const Status& error) {
  const ErrorEntry& entry = ErrorEntryOf(error.id());
  JsonWriter json;
  json.BeginObject()
      .Field("type", "about:blank")
      .Field("title", TitleOf(http_status))
      .Field("status", static_cast<uint32_t>(http_status));

  json.Field("detail", error.what())
      .Field("code", "TP" + std::to_string(static_cast<unsigned>(error.id())))
      .Field("name", entry.name);
  if (!error.where().empty()) json.Field("where", error.where());
  if (!error.why().empty()) json.Field("why", error.why());
  json.Field("remedy", error.fix().empty() ? entry.advice : error.fix()).EndObject();
  return {.status = http_status, .content_type = "application/problem+json", .body = json.Take()};
}

AdminAnswer ProblemOf(const Status& error) {
  return Problem(HttpStatusOf(error), error);
}

}  // namespace tidepool::memserver
