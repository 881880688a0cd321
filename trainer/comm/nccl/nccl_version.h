// The NCCL version that this process has loaded, or would load, for `trainer version` and bug
// reports: two NCCLs in one process are not allowed.
//
// Any thread. Loads the library.
#pragma once

#include <string>

namespace tidepool::trainer {

// "2.28.9", or "none (why)". Adds "built for X" when the header's release differs.
std::string NcclVersion();

}  // namespace tidepool::trainer
