#include "trainer/comm/operation_name.h"

#include <algorithm>

namespace tidepool::trainer {
namespace {

std::string KindText(uint32_t kind) {
  switch (static_cast<OperationKind>(kind)) {
    case OperationKind::kAllGather: return "all-gather";
    case OperationKind::kReduceScatter: return "reduce-scatter";
    case OperationKind::kBarrier: return "barrier";
    case OperationKind::kBroadcast: return "broadcast";
    case OperationKind::kAllToAll: return "all-to-all";
  }
  return "operation of kind " + std::to_string(kind);
}

}  // namespace

std::string OperationTag::Text() const {
  std::string text = KindText(kind);
  if (chunk != OperationName::kNoChunk) text += " of chunk " + std::to_string(chunk);
  const auto end = std::find(of.begin(), of.end(), '\0');
  if (end != of.begin()) text += " (" + std::string(of.begin(), end) + ")";
  if (place != 0) text += ", place " + std::to_string(place) + " of its pass";
  return text;
}

OperationTag TagOf(OperationKind kind, const OperationName& name) {
  OperationTag tag{.kind = static_cast<uint32_t>(kind), .chunk = name.chunk, .place = name.place};
  const size_t size = std::min(name.of.size(), tag.of.size());
  std::copy_n(name.of.end() - static_cast<std::ptrdiff_t>(size), size, tag.of.begin());
  return tag;
}

}  // namespace tidepool::trainer
