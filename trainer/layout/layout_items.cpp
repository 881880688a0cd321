#include "trainer/layout/layout_items.h"

#include <algorithm>
#include <string>

namespace tidepool::trainer {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 48;  // per parameter: 1 PiB of fp32

}  // namespace

Result<uint64_t> ElementsOf(const std::string& name, const std::vector<uint64_t>& dims) {
  uint64_t count = 1;
  for (const uint64_t dim : dims) {
    if (dim == 0 || dim > kElementsMax / count) {
      return Status(ErrorId::kUsageError, "parameter " + name + " has an extent of " +
                                              std::to_string(dim) + ", which gives no usable size");
    }
    count *= dim;
  }
  return count;
}

Status CheckGroups(uint32_t world, const std::vector<std::vector<Rank>>& groups) {
  if (world == 0) return Status(ErrorId::kUsageError, "a job needs at least one rank");

  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<Rank>& members = groups[g];
    const bool ascending = std::adjacent_find(members.begin(), members.end(), [](Rank a, Rank b) {
                             return a >= b;
                           }) == members.end();
    if (members.empty() || !ascending || members.back() >= world) {
      return Status(ErrorId::kUsageError, "data group " + std::to_string(g) +
                                              " must list ranks below " + std::to_string(world) +
                                              " in ascending order, at least one");
    }
  }

  return {};
}

}  // namespace tidepool::trainer
