// ConfigEdit: one setting of a memserver's configuration file (TOML), changed as an editor would:
// all other lines, comments too, stay.
//
// One thread. EditedConfig is a pure function. What it cannot change without guessing it refuses:
// values on several lines, inline tables.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::client {

struct ConfigEdit {
  std::string key, value;  // "limits.jobs", "7"
  uint64_t line = 0;       // where the key stands now; 0: nowhere
};
// The changed text.
struct EditedText {
  std::string text;
  uint64_t line = 0;  // where it stands now
};
// Errors: kUsageError (with the line that is in the way).
Result<EditedText> EditedConfig(const std::string& text, const ConfigEdit& edit);

// Errors: kFileUnreadable.
Result<std::string> ReadWhole(const std::string& path);
// At once and whole, or not at all; owner and mode of the file stay. Errors: kFileWriteFailed.
Status ReplaceFile(const std::string& path, const std::string& text);

}  // namespace tidepool::client
