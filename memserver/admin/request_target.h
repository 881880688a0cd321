// RequestTarget: the path and the parameters of an HTTP request, taken apart.
//
// Any thread; a value type. The text comes from a peer: everything that is not understood is an
// error, nothing is guessed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

struct RequestTarget {
  std::vector<std::string>
      path;  // segments, percent-decoded: "/v1/jobs/gpt" is {"v1", "jobs", "gpt"}
  std::vector<std::pair<std::string, std::string>> parameters;  // percent-decoded, in order

  // The parameter's value, or null when it was not given.
  const std::string* Find(std::string_view name) const;
};

// A route's path as it is written for people: {"v1", "jobs", "*"} is "/v1/jobs/{id or name}".
std::string PathText(std::span<const std::string_view> path);

inline constexpr size_t kTargetBytesMax = 4096;

// "/v1/chunks?job=7&limit=10". Errors: kAdminBadRequest (not a path from '/', bad escapes, a
// parameter given twice, too long).
Result<RequestTarget> ParseTarget(std::string_view target);
// Errors: kAdminBadRequest, when a parameter is none of `known`; the text lists those.
Status CheckParameters(const RequestTarget& target, std::span<const std::string_view> known);
// A parameter that must be a whole number of at most `max`; `fallback` when it was not given.
// Errors: kAdminBadRequest.
Result<uint64_t> NumberParameter(const RequestTarget& target, std::string_view name,
                                 uint64_t fallback, uint64_t max);

}  // namespace tidepool::memserver
