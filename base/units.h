// Units: parses and formats sizes, shares and durations in people's notation ("200GiB", "80%",
// "30s").
//
// Any thread. Parsing never guesses: an invalid text is an error that shows the accepted forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr uint64_t kPageBytes = 4 * kKiB;      // blocks and slots are aligned to this
inline constexpr uint64_t kHugePageBytes = 2 * kMiB;  // available from the system on request
// Parameters inside a chunk are aligned to this on the host.
inline constexpr uint64_t kParameterAlignBytes = 64;

// "4096", "64KiB", "1.5GiB", "2GB" (decimal). Errors: kConfigBadValue.
Result<uint64_t> ParseSize(std::string_view text);
// A size, or a share of `whole` ("80%"). Errors: kConfigBadValue.
Result<uint64_t> ParseSizeOrShare(std::string_view text, uint64_t whole);
// "250ms", "30s", "2min", "1h", in nanoseconds. Errors: kConfigBadValue.
Result<int64_t> ParseDurationNs(std::string_view text);

// "1.5 GiB", "512 B": three significant digits, binary units.
std::string FormatBytes(uint64_t bytes);
// "3.2 s", "240 ms", "2:05:10" from an hour on.
std::string FormatDuration(double seconds);
std::string FormatNs(int64_t ns);
// A time of the wall clock, both in seconds since 1970: "13:05" in local time, "2026-11-24 01:05"
// on another day than now.
std::string FormatWhen(int64_t seconds, int64_t now_seconds);
// "0.62": with `digits` decimals.
std::string FormatFixed(double value, int digits);
// "12.3M", "1.5B": counts of parameters and tokens.
std::string FormatCount(uint64_t count);

// The next multiple of `multiple`, which is not 0.
inline constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
// value / by, rounded up.
inline constexpr uint64_t DivideUp(uint64_t value, uint64_t by) {
  return (value + by - 1) / by;
}

}  // namespace tidepool
