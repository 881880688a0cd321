// MeasureFio: how fast the program fio reads and writes on a directory's file system: the baseline
// of a drive benchmark.
//
// One thread; blocks. fio is a Debian package that may be missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace tidepool::bench {

// Pause before each run: drives of virtual machines accumulate unused bandwidth, and fio takes time
// to start.
inline constexpr int64_t kDrivePauseNs = kNsPerSecond / 2;

// The result of one run.
struct DriveSpeed {
  double gib_per_second = 0;
  double cpu_per_gib = 0;  // seconds
};

// Settings of a fio run.
struct FioWay {
  const char* block = "1m";
  uint32_t depth = 64;  // blocks in flight
  // A CRC32C in each block: computed before writing, checked after reading (blocks must have been
  // written with it).
  bool checks = false;
  const char* file = "fio.data";  // in the directory, 1 GiB; created if missing
};

// True if fio can be started.
bool HasFio();
// One second of sequential blocks, io_uring, direct, registered buffers in 2 MiB pages.
// `direction`: "read", "write", or "rw", half of each, where the speed is the sum. nullopt if fio
// is missing or fails.
std::optional<DriveSpeed> MeasureFio(const std::string& directory, const std::string& direction,
                                     const FioWay& way = {});
// The fastest of four settings on that file, one second each.
FioWay BestFioWay(const std::string& directory, const std::string& direction,
                  const char* file = FioWay().file);

// A new directory in `base`, mode 0700, removed when the program ends, also by an error or a
// signal. Call once per program.
std::string ScratchIn(const std::string& base);

}  // namespace tidepool::bench
