// RootComplex: the bytes in flight between host memory and the GPUs behind one root complex, which
// share its bandwidth.
//
// One thread (the serve loop). The two ways (directions) are independent: a copy out of the pool
// and one into it do not slow each other down.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tidepool::memserver {

// The direction of a copy: out of the pool, or into it.
enum class LaneWay : uint32_t { kToRcache = 0, kToPool = 1 };
inline constexpr size_t kLaneWays = 2;

// The state of one direction. A copy is *awaited* if, as far as the server knows, a rank stands
// still until it has ended.
struct RootWay {
  uint64_t bytes = 0;    // in flight
  uint32_t awaited = 0;  // copies in flight that were awaited when they began
  // Total bytes begun: the clock by which a copy requested ahead of time becomes awaited.
  uint64_t begun = 0;
};

class RootComplex {
 public:
  // At most about `bytes_max` are in flight in each direction.
  RootComplex(std::string name, size_t number, uint64_t bytes_max)
      : name_(std::move(name)), number_(number), bytes_max_(bytes_max) {}

  const std::string& name() const { return name_; }
  size_t number() const { return number_; }  // index among the loop's root complexes
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
