// Counts the hits of a point while it lives. Header only; one at a time.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/point.h"

namespace tidepool {

class PointHits {
 public:
  explicit PointHits(std::string_view name) {
    SetPointHook(
        [this, name](const char* hit) { count_ += std::string_view(hit) == name ? 1 : 0; });
  }
  ~PointHits() { SetPointHook({}); }
  PointHits(const PointHits&) = delete;
  PointHits& operator=(const PointHits&) = delete;
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace tidepool
