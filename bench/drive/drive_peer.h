// MeasureFio: how fast the program fio reads and writes on the file system of a directory, as what
// a benchmark of a drive is held against.
//
// One thread; it blocks. fio is a program of Debian's that need not be there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace tidepool::bench {

// Before each run: drives of virtual machines save up what they did not do, and fio takes its time
// to begin.
inline constexpr int64_t kDrivePauseNs = kNsPerSecond / 2;

// What one run reached.
struct DriveSpeed {
  double gib_per_second = 0;
  double cpu_per_gib = 0;  // seconds
};

// How fio asks the drive.
struct FioWay {
  const char* block = "1m";
  uint32_t depth = 64;  // blocks that are out
  // A CRC32C in each block: made before it is written, looked at when it was read (of what was
  // written so).
  bool checks = false;
  const char* file = "fio.data";  // in the directory, of 1 GiB; made where it is not there
};

// True where fio can be started.
bool HasFio();
// A second of sequential blocks, io_uring, direct, registered buffers in pages of 2 MiB.
// `direction`: "read", "write", or "rw", half of each, whose speed is the sum. Nothing where fio is
// missing or fails.
std::optional<DriveSpeed> MeasureFio(const std::string& directory, const std::string& direction,
                                     const FioWay& way = {});
// The fastest of four ways on that file, a second each.
FioWay BestFioWay(const std::string& directory, const std::string& direction,
                  const char* file = FioWay().file);

// A new directory in `base`, mode 0700, that is removed when the program ends, also where it gives
// up or is broken off. Once a program.
std::string ScratchIn(const std::string& base);

}  // namespace tidepool::bench
