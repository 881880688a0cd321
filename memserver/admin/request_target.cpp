#include "memserver/admin/request_target.h"

#include <algorithm>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <charconv>

#include "base/text/suggest.h"

namespace tidepool::memserver {
namespace {

Status BadTarget(std::string what) {
  return Status(ErrorId::kAdminBadRequest, std::move(what));
}

}  // namespace

const std::string* RequestTarget::Find(std::string_view name) const {
  for (const auto& [key, value] : parameters) {
    if (key == name) return &value;
  }
  return nullptr;
}

Result<RequestTarget> ParseTarget(std::string_view target) {
  if (target.size() > kTargetBytesMax)
    return BadTarget("the request's path is longer than " + std::to_string(kTargetBytesMax) +
                     " bytes");
  const auto url = boost::urls::parse_origin_form({target.data(), target.size()});
  if (url.has_error()) return BadTarget("the request's path is not one: " + url.error().message());

  RequestTarget parsed;
  for (const auto segment : url->segments()) parsed.path.push_back(segment);
  for (const auto& parameter : url->params()) {
    if (parsed.Find(parameter.key) != nullptr)
      return BadTarget("the parameter '" + std::string(parameter.key) + "' is given twice");
    parsed.parameters.emplace_back(parameter.key, parameter.value);
  }
  return parsed;
}

Status CheckParameters(const RequestTarget& target, std::span<const std::string_view> known) {
  for (const auto& [key, value] : target.parameters) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string all;
    for (const std::string_view each : known) all += (all.empty() ? "" : ", ") + std::string(each);
    return BadTarget("this path has no parameter '" + key + "'" + DidYouMean(key, known))
        .Fix(known.empty() ? "leave the parameter out" : "use one of: " + all);
  }
  return {};
}

Result<uint64_t> NumberParameter(const RequestTarget& target, std::string_view name,
                                 uint64_t fallback, uint64_t max) {
  const std::string* text = target.Find(name);
  if (text == nullptr) return fallback;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value > max) {
    return BadTarget("the parameter " + std::string(name) + "='" + *text +
                     "' is not a whole number up to " + std::to_string(max));
  }
  return value;
}

std::string PathText(std::span<const std::string_view> path) {
  std::string text;
  std::string_view before;
  for (const std::string_view segment : path) {
    text += "/" + std::string(segment != "*"       ? segment
                              : before == "chunks" ? "{chunk}"
                                                   : "{id or name}");
    before = segment;
  }
  return text;
}

}  // namespace tidepool::memserver
