// FixedRing: a first-in first-out queue whose room is taken once, so that the data plane allocates
// nothing.
//
// One thread. Push on a full ring and Pop on an empty one are bugs and stop the process: every user
// knows a bound from its own counting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace tidepool::memserver {

template <typename T>
class FixedRing {
 public:
  explicit FixedRing(uint32_t items_max) : items_(items_max) {}

  // Adds the youngest item. Requires that the ring is not full.
  void Push(const T& item) {
    TP_CHECK(count_ < items_.size(), "the bound of this queue was counted before");
    items_[(first_ + count_) % items_.size()] = item;
    ++count_;
  }
  // The oldest item. Requires that there is one, as does Pop, which takes it out.
  const T& Front() const {
    TP_CHECK(count_ > 0, "Front of an empty queue");
    return items_[first_];
  }
  void Pop() {
    TP_CHECK(count_ > 0, "Pop of an empty queue");
    first_ = (first_ + 1) % items_.size();
    --count_;
  }
  // The i-th oldest item.
  const T& at(uint32_t i) const { return items_[(first_ + i) % items_.size()]; }
  uint32_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  void Clear() { count_ = 0; }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
  uint32_t count_ = 0;
};

}  // namespace tidepool::memserver
