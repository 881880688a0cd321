// CopyLinks: copies queued for root complexes, one at a time in each direction, by how early they
// are needed. An earlier need interrupts a running copy, which continues later (memserver copies
// chunk by chunk; CUDA's stream priorities, which Mobius names, do not order copies).
//
// One thread; part of trainer/plan/pipeline/pipeline_schedule.h. Times in nanoseconds.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace tidepool::trainer {

// An uninterrupted part of a copy.
struct CopySpan {
  uint32_t copy = 0;
  int64_t start_ns = 0, end_ns = 0;
};

// Priority of a copy, earliest need first; `copy` makes it unique.
struct CopyNeed {
  uint32_t kind = 0, visit = 0, item = 0;
  uint32_t copy = 0;
  friend auto operator<=>(const CopyNeed&, const CopyNeed&) = default;
};

class CopyLinks {
 public:
  // `spans` outlives the object and receives the executed parts.
  CopyLinks(uint32_t complexes, std::vector<CopySpan>* spans)
      : links_(size_t{2} * complexes), spans_(spans) {}

  // Queues the copy, which takes `duration_ns` of its link.
  void Request(uint32_t complex, bool up, const CopyNeed& need, int64_t duration_ns);
  // Gives each link to the copy with the earliest need.
  void Assign(int64_t now_ns);
  // When the first running copy ends; -1: none is running.
  int64_t NextEnd() const;
  // The copies that have ended by now; removes them.
  std::vector<uint32_t> TakeEnded(int64_t now_ns);

 private:
  struct Waiting {
    CopyNeed need;
    int64_t left_ns = 0;
    friend bool operator<(const Waiting& a, const Waiting& b) { return a.need < b.need; }
  };
  struct Link {
    std::set<Waiting> waiting;
    bool busy = false;
    Waiting current;
    int64_t since_ns = 0;

    int64_t end_ns() const { return since_ns + current.left_ns; }
  };

  // Records the executed part of the link's copy.
  void Close(Link* link, int64_t now_ns);

  std::vector<Link> links_;  // of complex c: 2 c up, 2 c + 1 down
  std::vector<CopySpan>* const spans_;
};

}  // namespace tidepool::trainer
