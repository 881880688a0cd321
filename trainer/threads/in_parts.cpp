#include "trainer/threads/in_parts.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/units.h"

namespace tidepool::trainer {

void InParts(uint64_t count, uint64_t least, uint32_t threads,
             const std::function<void(uint64_t begin, uint64_t end)>& work) {
  if (count == 0) return;
  const uint64_t part = std::max(least, DivideUp(count, uint64_t{std::max(threads, 1U)}));

  std::vector<std::jthread> others;  // joined at the end of the scope
  for (uint64_t begin = part; begin < count; begin += part)
    others.emplace_back([&work, begin, end = std::min(count, begin + part)] { work(begin, end); });
  work(0, std::min(count, part));
}

}  // namespace tidepool::trainer
