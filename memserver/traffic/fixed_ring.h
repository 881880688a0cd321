// FixedRing: a FIFO queue whose memory is allocated once, so that the data plane allocates nothing.
// Unused memory is never touched: a job may have many rings, each with room for all of its chunks.
//
// One thread. Push on a full ring and Pop on an empty one are bugs and stop the process: every user
// bounds the number of items by its own counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace tidepool::memserver {

template <typename T>
class FixedRing {
 public:
  explicit FixedRing(uint32_t items_max) : items_max_(items_max) { items_.reserve(items_max); }

  // Adds the youngest item. Requires that the ring is not full.
  void Push(const T& item) {
    TP_CHECK(count_ < items_max_, "the bound of this queue was counted before");
    const size_t at = (first_ + count_) % items_max_;
    at == items_.size() ? items_.push_back(item) : static_cast<void>(items_[at] = item);
    ++count_;
  }
  // The oldest item. Requires that there is one, as does Pop, which removes it.
  const T& Front() const {
    TP_CHECK(count_ > 0, "Front of an empty queue");
    return items_[first_];
  }
  void Pop() {
    TP_CHECK(count_ > 0, "Pop of an empty queue");
    first_ = (first_ + 1) % items_max_;
    --count_;
  }
  // The i-th oldest item.
  const T& at(uint32_t i) const { return items_[(first_ + i) % items_max_]; }
  uint32_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  void Clear() { count_ = 0; }

 private:
  size_t items_max_;  // 0 only in a ring that is never used
  std::vector<T> items_;
  size_t first_ = 0;
  uint32_t count_ = 0;
};

}  // namespace tidepool::memserver
