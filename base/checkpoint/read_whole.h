// ReadWhole: reads a small file into a string. Any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace tidepool {

// Errors: kFileUnreadable, also for a file of more than 64 MiB.
Result<std::string> ReadWhole(const std::string& path);

}  // namespace tidepool
