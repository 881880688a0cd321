// RequestTarget: the parsed path and parameters of an HTTP request.
//
// Any thread; a value type. The text comes from a peer: anything that is not understood is an
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

  // The parameter's value, or null if it is not given.
  const std::string* Find(std::string_view name) const;
};

// A route's path in the form for people: {"v1", "jobs", "*"} is "/v1/jobs/{id or name}".
std::string PathText(std::span<const std::string_view> path);

inline constexpr size_t kTargetBytesMax = 4096;

// Parses a target such as "/v1/chunks?job=7&limit=10". Errors: kAdminBadRequest (no path from '/',
// bad escapes, a parameter given twice, too long).
Result<RequestTarget> ParseTarget(std::string_view target);
// Checks that every parameter is one of `known`. Errors: kAdminBadRequest; the text lists those.
Status CheckParameters(const RequestTarget& target, std::span<const std::string_view> known);
// A parameter that must be a whole number of at most `max`; `fallback` if it is not given. Errors:
// kAdminBadRequest.
Result<uint64_t> NumberParameter(const RequestTarget& target, std::string_view name,
                                 uint64_t fallback, uint64_t max);

}  // namespace tidepool::memserver
