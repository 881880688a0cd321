// MeasureTuning: finds by a short measurement the prefetch distance at which the crash-safe update
// runs fastest on this machine.
//
// Once, at start, on the calling thread and as many helpers as there will be workers; nothing else
// may use `scratch` meanwhile. The bits of an update never depend on the result, so a bad
// measurement only costs speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "optim/kernels/isa.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

// Below this many scratch bytes per worker nothing is measured. It covers the planes of a few
// samples, so that the first-level cache holds none of them.
inline constexpr uint64_t kTuningScratchMin = uint64_t{8} << 20;
inline constexpr uint64_t kTuningScratchWanted = uint64_t{32} << 20;

// What is measured, and for how long.
struct TuningOptions {
  uint32_t workers = 1;
  optim::IsaLevel isa = optim::BestIsa();
  int64_t limit_ns = 40 * kNsPerMs;  // a sample that has begun is finished
};

// The fastest tuning, and how it was found.
struct TuningResult {
  optim::Tuning tuning;  // the default if nothing could be measured
  uint32_t rounds = 0;   // samples of each candidate; 0: not measured
  double gain = 1;       // speed relative to the default
  int64_t took_ns = 0;
};

// `scratch` holds any bytes, in touched pages; they are overwritten.
TuningResult MeasureTuning(const TuningOptions& options, std::span<std::byte> scratch,
                           const Clock& clock);

// Parses "512" (prefetch distance in elements) or "auto" (measure). Errors: kConfigBadValue.
Result<std::optional<optim::Tuning>> TuningFromText(const std::string& text);

}  // namespace tidepool::memserver
