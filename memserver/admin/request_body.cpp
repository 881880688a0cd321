#include "memserver/admin/request_body.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/stream_parser.hpp>
#include <boost/json/value.hpp>
#include <span>

#include "base/text/suggest.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

namespace json = boost::json;

Status Bad(std::string what) {
  return Status(ErrorId::kAdminBadRequest, std::move(what));
}

Result<RequestBody::Value> ValueOf(const std::string& name, const json::value& value) {
  if (value.is_string()) return RequestBody::Value(std::string(value.get_string()));
  if (value.is_bool()) return RequestBody::Value(value.get_bool());
  if (value.is_uint64()) return RequestBody::Value(uint64_t{value.get_uint64()});
  if (value.is_int64() && value.get_int64() >= 0)
    return RequestBody::Value(static_cast<uint64_t>(value.get_int64()));
  return Bad("the field '" + name + "' is neither a text, a whole number, true nor false");
}

// Reads bytes, a size as text, or a share of `whole` if that is not 0.
Status ReadBytes(const RequestBody& body, const char* name, uint64_t whole,
                 std::optional<uint64_t>* bytes) {
  const RequestBody::Value* value = body.Find(name);
  if (value == nullptr) return Status();
  if (const auto* number = std::get_if<uint64_t>(value)) {
    *bytes = *number;
    return Status();
  }
  const auto* text = std::get_if<std::string>(value);
  if (text == nullptr) return Bad(std::string("the field '") + name + "' is no size");

  if (*text == "none" && std::string_view(name).ends_with("limit")) {
    *bytes = kNoLimit;
    return Status();
  }
  auto size = whole > 0 ? ParseSizeOrShare(*text, whole) : ParseSize(*text);
  if (!size.ok())
    return Bad(std::string("the field '") + name + "': " + size.status().what())
        .Fix(whole > 0 ? "give bytes, a size such as 10GiB or a share such as 50%"
                       : "give bytes or a size such as 10GiB");
  *bytes = *size;
  return Status();
}

}  // namespace

const RequestBody::Value* RequestBody::Find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

Status RequestBody::CheckFields(std::initializer_list<std::string_view> known) const {
  const std::vector<std::string_view> names(known);
  for (const auto& [key, value] : fields) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    std::string all;
    for (const std::string_view each : names) all += (all.empty() ? "" : ", ") + std::string(each);
    return Bad("this request has no field '" + key + "'" + DidYouMean(key, names))
        .Fix(names.empty() ? "send no body" : "use one of: " + all);
  }
  return Status();
}

Result<std::string> RequestBody::Text(std::string_view name) const {
  const Value* value = Find(name);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  if (text == nullptr) return Bad("the field '" + std::string(name) + "' is missing or no text");
  return *text;
}

Result<RequestBody> ParseBody(std::string_view text) {
  if (text.size() > kBodyBytesMax)
    return Bad("the request's body is longer than " + std::to_string(kBodyBytesMax) + " bytes");
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return RequestBody{};
  json::parse_options options;
  options.max_depth = 2;
  boost::system::error_code error;
  const json::value value = json::parse({text.data(), text.size()}, error, {}, options);
  if (error) return Bad("the request's body is not JSON: " + error.message());

  const json::object* object = value.if_object();
  if (object == nullptr) return Bad("the request's body is not a JSON object");
  if (object->size() > kBodyFieldsMax)
    return Bad("the request's body has more than " + std::to_string(kBodyFieldsMax) + " fields");
  RequestBody body;
  for (const auto& member : *object) {
    const std::string name(member.key());
    TP_ASSIGN_OR_RETURN(RequestBody::Value field, ValueOf(name, member.value()));
    body.fields.emplace_back(name, std::move(field));
  }
  return body;
}

Result<QuotaChange> ReadQuotaChange(const RequestBody& body, uint64_t pool_bytes) {
  TP_RETURN_IF_ERROR(body.CheckFields({"guarantee", "limit", "nvme_limit", "weight", "priority"}));
  if (body.fields.empty())
    return Bad("nothing is to change")
        .Fix("give one of: guarantee, limit, nvme_limit, weight, priority");

  QuotaChange change;
  TP_RETURN_IF_ERROR(ReadBytes(body, "guarantee", pool_bytes, &change.guarantee));
  TP_RETURN_IF_ERROR(ReadBytes(body, "limit", pool_bytes, &change.limit));
  TP_RETURN_IF_ERROR(ReadBytes(body, "nvme_limit", 0, &change.nvme_limit));
  if (const RequestBody::Value* weight = body.Find("weight")) {
    const auto* number = std::get_if<uint64_t>(weight);
    if (number == nullptr || *number == 0 || *number > kWeightMax) {
      return Bad("the field 'weight' is not a whole number from 1 to " +
                 std::to_string(kWeightMax));
    }
    change.weight = static_cast<uint32_t>(*number);
  }

  if (body.Find("priority") != nullptr) {
    TP_ASSIGN_OR_RETURN(const std::string name, body.Text("priority"));
    auto priority = PriorityFromName(name);
    if (!priority.ok()) return Bad(priority.status().what()).Fix("give low, normal or high");
    change.priority = *priority;
  }
  return change;
}

}  // namespace tidepool::memserver
