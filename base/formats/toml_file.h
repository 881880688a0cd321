// ReadTomlFile: reads a TOML file as a flat list of keys, texts and lines. The one door to toml++.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool {

// One value of the file.
struct FileSetting {
  std::string key;  // dotted: "pool.size"; in a list of tables "jobs.quota[0].match"
  // Strings without quotes; numbers and booleans as written in TOML's shortest form.
  std::string text;
  std::string where;  // "/etc/tidepool/memserver.toml:3"
};

// Whether numbers may have a fraction.
enum class Fractions : uint8_t { kRefused, kAllowed };
// Errors: kConfigUnreadable, kConfigSyntax (with line and column), kConfigBadValue (a date, or a
// list of anything other than tables).
Result<std::vector<FileSetting>> ReadTomlFile(const std::string& path,
                                              Fractions fractions = Fractions::kRefused);

}  // namespace tidepool
