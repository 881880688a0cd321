// MeasureTuning: which prefetch distance runs the crash-safe update fastest on this machine, found
// by a short measurement.
//
// Once, at start, on the calling thread and as many helpers as there will be workers; nothing else
// may use `scratch` meanwhile. Bits of an update never depend on the result, so a bad measurement
// costs speed only.
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

// Scratch bytes a worker below which nothing is measured: the planes of a few samples, so that the
// first cache holds none of them.
inline constexpr uint64_t kTuningScratchMin = uint64_t{8} << 20;
inline constexpr uint64_t kTuningScratchWanted = uint64_t{32} << 20;

// What is measured, and for how long.
struct TuningOptions {
  uint32_t workers = 1;
  optim::IsaLevel isa = optim::BestIsa();
  int64_t limit_ns = 40 * kNsPerMs;  // a sample that has begun is finished
};

// The tuning that was fastest, and how it was found.
struct TuningResult {
  optim::Tuning tuning;  // the default where nothing could be measured
  uint32_t rounds = 0;   // samples of each candidate; 0: not measured
  double gain = 1;       // speed against the default's
  int64_t took_ns = 0;
};

// `scratch` holds any bytes, in pages that were touched; afterwards it holds others.
TuningResult MeasureTuning(const TuningOptions& options, std::span<std::byte> scratch,
                           const Clock& clock);

// "512": prefetch distance in elements; "auto": nothing, measure. Errors: kConfigBadValue.
Result<std::optional<optim::Tuning>> TuningFromText(const std::string& text);

}  // namespace tidepool::memserver
