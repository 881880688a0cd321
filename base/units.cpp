#include "base/units.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <cstdlib>

namespace tidepool {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Splits "1.5GiB" into 1.5 and the unit's factor; false if either part is invalid.
bool ParseWithUnit(std::string_view text, std::span<const Unit> units, double* value) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(number) || number < 0) return false;
  while (*end == ' ') ++end;

  const std::string_view suffix(end);
  for (const Unit& unit : units) {
    if (unit.name == suffix) {
      *value = number * unit.factor;
      return true;
    }
  }
  return false;
}

std::string Printed(const char* format, double value, const char* unit) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value, unit);
  return buffer.data();
}

constexpr auto kSizeUnits = std::to_array<Unit>({{"", 1},
                                                 {"B", 1},
                                                 {"KiB", 0x1p10},
                                                 {"MiB", 0x1p20},
                                                 {"GiB", 0x1p30},
                                                 {"TiB", 0x1p40},
                                                 {"K", 0x1p10},
                                                 {"M", 0x1p20},
                                                 {"G", 0x1p30},
                                                 {"T", 0x1p40},
                                                 {"KB", 1e3},
                                                 {"MB", 1e6},
                                                 {"GB", 1e9},
                                                 {"TB", 1e12}});
constexpr auto kTimeUnits = std::to_array<Unit>({{"ns", 1},
                                                 {"us", 1e3},
                                                 {"ms", 1e6},
                                                 {"s", 1e9},
                                                 {"", 1e9},
                                                 {"min", 60e9},
                                                 {"m", 60e9},
                                                 {"h", 3600e9},
                                                 {"d", 86400e9}});

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  double value = 0;
  if (!ParseWithUnit(text, kSizeUnits, &value) || value >= 0x1p62) {
    return Status(ErrorId::kConfigBadValue, "\"" + std::string(text) + "\" is not a size")
        .Fix("write it like 4096, 64KiB, 1.5GiB or 2GB");
  }
  return static_cast<uint64_t>(value);
}

Result<uint64_t> ParseSizeOrShare(std::string_view text, uint64_t whole) {
  if (text.empty() || text.back() != '%') return ParseSize(text);
  double share = 0;
  constexpr auto kPercent = std::to_array<Unit>({{"%", 0.01}});
  if (!ParseWithUnit(text, kPercent, &share) || share > 1.0) {
    return Status(ErrorId::kConfigBadValue, "\"" + std::string(text) + "\" is not a share")
        .Fix("write it like 80%, or a size like 64GiB");
  }
  return static_cast<uint64_t>(share * static_cast<double>(whole));
}

Result<int64_t> ParseDurationNs(std::string_view text) {
  double value = 0;
  if (!ParseWithUnit(text, kTimeUnits, &value) || value >= 0x1p62) {
    return Status(ErrorId::kConfigBadValue, "\"" + std::string(text) + "\" is not a duration")
        .Fix("write it like 250ms, 30s, 2min, 1h or 7d");
  }
  return static_cast<int64_t>(value);
}

std::string FormatBytes(uint64_t bytes) {
  constexpr auto kNames = std::to_array<const char*>({"B", "KiB", "MiB", "GiB", "TiB"});
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  const char* format = unit == 0 || value >= 100 ? "%.0f %s" : value >= 10 ? "%.1f %s" : "%.2f %s";
  return Printed(format, value, kNames[unit]);
}

std::string FormatDuration(double seconds) {
  if (seconds < 1e-3) return Printed("%.0f %s", seconds * 1e6, "us");
  if (seconds < 1) return Printed("%.0f %s", seconds * 1e3, "ms");
  if (seconds < 60) return Printed("%.1f %s", seconds, "s");

  const auto whole = static_cast<int64_t>(seconds + 0.5);
  std::array<char, 64> buffer{};
  if (whole < 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%d:%02d min", static_cast<int>(whole / 60),
                  static_cast<int>(whole % 60));
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%d:%02d:%02d", static_cast<int>(whole / 3600),
                  static_cast<int>(whole / 60 % 60), static_cast<int>(whole % 60));
  }
  return buffer.data();
}

std::string FormatNs(int64_t ns) {
  return FormatDuration(static_cast<double>(ns) / 1e9);
}

std::string FormatWhen(int64_t seconds, int64_t now_seconds) {
  const auto local = [](int64_t at) {
    const std::time_t time = at;
    std::tm parts{};
    localtime_r(&time, &parts);
    return parts;
  };

  const std::tm when = local(seconds), now = local(now_seconds);
  const bool today = when.tm_year == now.tm_year && when.tm_yday == now.tm_yday;
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), today ? "%H:%M" : "%Y-%m-%d %H:%M", &when);
  return text.data();
}

std::string FormatFixed(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string FormatCount(uint64_t count) {
  const double value = static_cast<double>(count);
  if (count < 10'000) return std::to_string(count);
  if (value < 1e6) return Printed("%.1f%s", value / 1e3, "K");
  if (value < 1e9) return Printed("%.1f%s", value / 1e6, "M");
  return Printed("%.2f%s", value / 1e9, "B");
}

}  // namespace tidepool
