// RequestBody: the JSON object of a change request on the admin socket, as flat fields.
//
// Any thread; a value type. The text comes from a peer: anything that is not understood is an
// error, nothing is guessed. request_body.cpp is this room's one door to Boost.JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

inline constexpr size_t kBodyBytesMax = 16 * 1024;
inline constexpr size_t kBodyFieldsMax = 32;

struct RequestBody {
  using Value = std::variant<std::string, uint64_t, bool>;
  std::vector<std::pair<std::string, Value>> fields;  // in order, each name once

  // The value of a field; null if there is none.
  const Value* Find(std::string_view name) const;
  // Checks that every field is one of `known`. Errors: kAdminBadRequest; the text lists those.
  Status CheckFields(std::initializer_list<std::string_view> known) const;
  // A field that must be a string. Errors: kAdminBadRequest.
  Result<std::string> Text(std::string_view name) const;
};

// Parses an object such as {"limit":"10GiB","weight":2}; an empty text is an empty object. Errors:
// kAdminBadRequest (not JSON, not an object, a list or an object inside, a number that is not whole
// or is negative, too many fields, too long). If a name occurs twice, the last one counts.
Result<RequestBody> ParseBody(std::string_view text);

// Reads the fields guarantee and limit (bytes, or a size such as "10GiB", or a share of the pool
// such as "50%"; limit also "none"), nvme_limit (bytes, a size or "none"), weight and priority.
// Errors: kAdminBadRequest.
Result<QuotaChange> ReadQuotaChange(const RequestBody& body, uint64_t pool_bytes);

}  // namespace tidepool::memserver
