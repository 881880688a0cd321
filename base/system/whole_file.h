// WriteWholeFile: a file that is there as a whole under its name, or as it was before.
//
// Any thread; one writer of a path at a time.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool {

// Writes the parts one behind the other beside `path`, brings them to the disk, and gives them its
// name; the mode of a file that was there stays. What a process that was killed has left beside it
// is used up by the next call. Links are followed; what is no regular file (a pipe, a device) is
// written as it is. Errors: kFileWriteFailed (names the file); the former file is untouched then,
// and nothing lies beside it.
Status WriteWholeFile(const std::string& path,
                      const std::vector<std::span<const std::byte>>& parts);
Status WriteWholeFile(const std::string& path, const std::string& text);

}  // namespace tidepool
