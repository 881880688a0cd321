// RootComplex: the bytes in flight between host memory and the GPUs behind one root complex, which
// share its bandwidth.
//
// One thread (the serve loop). The two ways are independent: a copy out of the pool and one into it
// do not slow each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tidepool::memserver {

// The way of a copy: out of the pool, or into it.
enum class LaneWay : uint32_t { kToRcache = 0, kToPool = 1 };
inline constexpr size_t kLaneWays = 2;

// The state of one way. A copy is *awaited* when a rank stands still until it has ended, as far as
// the server knows.
struct RootWay {
  uint64_t bytes = 0;    // in flight
  uint32_t awaited = 0;  // copies in flight that were awaited when they began
  // Bytes ever begun: the clock by which a copy that was asked for ahead comes to be awaited.
  uint64_t begun = 0;
};

class RootComplex {
 public:
  // About `bytes_max` are in flight at most, each way.
  RootComplex(std::string name, size_t number, uint64_t bytes_max)
      : name_(std::move(name)), number_(number), bytes_max_(bytes_max) {}

  const std::string& name() const { return name_; }
  size_t number() const { return number_; }  // among the loop's
  uint64_t bytes_max() const { return bytes_max_; }
  RootWay& way(LaneWay way) { return ways_[static_cast<size_t>(way)]; }
  const RootWay& way(LaneWay way) const { return ways_[static_cast<size_t>(way)]; }

 private:
  const std::string name_;
  const size_t number_;
  const uint64_t bytes_max_;
  std::array<RootWay, kLaneWays> ways_;
};

}  // namespace tidepool::memserver
