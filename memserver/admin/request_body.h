// RequestBody: the JSON object that a change of the admin socket brings, as flat fields.
//
// Any thread; a value type. The text comes from a peer: everything that is not understood is an
// error, nothing is guessed. The one door to Boost.JSON in this room is request_body.cpp.
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

  // The value of a field; null where there is none.
  const Value* Find(std::string_view name) const;
  // Errors: kAdminBadRequest, when a field is none of `known`; the text lists those.
  Status CheckFields(std::initializer_list<std::string_view> known) const;
  // A field that must be a text. Errors: kAdminBadRequest.
  Result<std::string> Text(std::string_view name) const;
};

// {"limit":"10GiB","weight":2}; nothing at all is an empty object. Errors: kAdminBadRequest (not
// JSON, not an object, a list or an object inside, a number that is not whole or is negative, too
// many fields, too long). Where a name comes twice, the last one counts.
Result<RequestBody> ParseBody(std::string_view text);

// The fields guarantee and limit (bytes, or a size such as "10GiB", or a share of the pool such as
// "50%"; limit also "none"), nvme_limit (bytes, a size or "none"), weight and priority. Errors:
// kAdminBadRequest.
Result<QuotaChange> ReadQuotaChange(const RequestBody& body, uint64_t pool_bytes);

}  // namespace tidepool::memserver
