// The NCCL that this trainer was linked with, for `trainer version` and bug reports: two NCCLs in one process are never allowed.
//
// Any thread.
#pragma once

#include <string>

namespace tidepool::trainer {

// "2.28.9", or "none" in a build without NCCL. Adds "built for X" when headers and library differ.
std::string NcclVersion();

}  // namespace tidepool::trainer
