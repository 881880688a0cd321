// ConfigEdit: changes one setting in memserver's configuration file (TOML) and leaves all other
// lines, comments included, as they are.
//
// One thread. EditedConfig is a pure function. It refuses what it cannot change without guessing:
// values on several lines, inline tables.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::client {

struct ConfigEdit {
  std::string key, value;  // "limits.jobs", "7"
  uint64_t line = 0;       // the key's present line; 0: not in the file
};
// The changed text.
struct EditedText {
  std::string text;
  uint64_t line = 0;  // the key's new line
};
// Errors: kUsageError (names the line that prevents the edit).
Result<EditedText> EditedConfig(const std::string& text, const ConfigEdit& edit);

// Errors: kFileUnreadable.
Result<std::string> ReadWhole(const std::string& path);
// Atomic; keeps the file's owner and mode. Errors: kFileWriteFailed.
Status ReplaceFile(const std::string& path, const std::string& text);

}  // namespace tidepool::client
