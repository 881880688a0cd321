#include "memserver/residency/pool/extent_runs.h"

#include <algorithm>

namespace tidepool::memserver {

size_t DivideRuns(std::vector<Extent>* runs, size_t first, uint64_t bytes) {
  while (bytes > 0) {
    Extent& run = (*runs)[first++];
    if (run.bytes <= bytes) {
      bytes -= run.bytes;
      continue;
    }

    const Extent rest{run.data + bytes, run.bytes - bytes, run.offset + bytes};
    run.bytes = bytes;
    runs->insert(runs->begin() + static_cast<std::ptrdiff_t>(first), rest);
    return first;
  }
  return first;
}

std::vector<Extent> RunsWithout(std::span<const Extent> runs, std::span<const Extent> pages) {
  std::vector<Extent> gone(pages.begin(), pages.end()), left;
  std::sort(gone.begin(), gone.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });

  for (Extent run : runs) {
    auto page = std::partition_point(
        gone.begin(), gone.end(), [&run](const Extent& each) { return each.offset < run.offset; });

    for (; page != gone.end() && page->offset < run.offset + run.bytes; ++page) {
      const uint64_t before = page->offset - run.offset, cut = before + page->bytes;
      if (before > 0) left.push_back({run.data, before, run.offset});
      run = {run.data + cut, run.bytes - cut, run.offset + cut};
    }
    if (run.bytes > 0) left.push_back(run);
  }
  return left;
}

}  // namespace tidepool::memserver
