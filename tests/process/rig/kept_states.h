// KeptStates: what memserver left with its keeper, read as the next server would: every plane of a
// job at its last sealed step.
//
// One thread. The memserver has parted from its keeper (SIGTERM while the job lived); the next one
// finds everything there still.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::testing {

struct KeptStates {
  uint64_t version = 0;          // sealed
  std::vector<std::byte> bytes;  // master, momentum, variance (and param16) of each chunk, in order
};

// Takes the memory from the keeper of `socket_dir`, finishes a sealed step that is not done, and
// leaves it with the keeper for a minute.
Result<KeptStates> ReadKeptStates(const std::string& socket_dir, const std::string& job);

}  // namespace tidepool::testing
