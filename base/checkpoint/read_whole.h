// ReadWhole: a small file as a string. Any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace tidepool {

// Errors: kFileUnreadable; also a file of more than 64 MiB.
Result<std::string> ReadWhole(const std::string& path);

}  // namespace tidepool
