#include "trainer/plan/pipeline/copy_links.h"

#include <algorithm>

namespace tidepool::trainer {

void CopyLinks::Request(uint32_t complex, bool up, const CopyNeed& need, int64_t duration_ns) {
  links_[size_t{2} * complex + (up ? 0 : 1)].waiting.insert({need, duration_ns});
}

void CopyLinks::Close(Link* link, int64_t now_ns) {
  if (now_ns > link->since_ns) spans_->push_back({link->current.need.copy, link->since_ns, now_ns});
  link->current.left_ns -= now_ns - link->since_ns;
  link->busy = false;
}

void CopyLinks::Assign(int64_t now_ns) {
  for (Link& link : links_) {
    if (link.waiting.empty()) continue;
    if (link.busy) {
      if (link.current < *link.waiting.begin()) continue;
      Close(&link, now_ns);
      link.waiting.insert(link.current);
    }

    link.current = *link.waiting.begin();
    link.waiting.erase(link.waiting.begin());
    link.since_ns = now_ns;
    link.busy = true;
  }
}

int64_t CopyLinks::NextEnd() const {
  int64_t next = -1;
  for (const Link& link : links_) {
    if (link.busy && (next < 0 || link.end_ns() < next)) next = link.end_ns();
  }
  return next;
}

std::vector<uint32_t> CopyLinks::TakeEnded(int64_t now_ns) {
  std::vector<uint32_t> ended;
  for (Link& link : links_) {
    if (!link.busy || link.end_ns() > now_ns) continue;
    Close(&link, now_ns);
    ended.push_back(link.current.need.copy);
  }
  return ended;
}

}  // namespace tidepool::trainer
