#include "trainer/comm/operation_order.h"

#include <algorithm>
#include <string>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

struct Summary {
  uint64_t count, kept, hash;
  bool operator==(const Summary&) const = default;
};

// FNV-1a.
uint64_t Hash(uint64_t hash, const void* bytes, size_t size) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * 0x100000001B3;
  return hash;
}

// Every rank's `own`, by rank.
template <typename T>
Status Gather(Collective* host, const T* own, uint64_t count, std::vector<T>* all) {
  all->resize(host->world() * count);
  std::copy_n(own, count, all->data() + host->rank() * count);
  return host->Wait(host->StartAllGather(
      {.data = all->data(), .shard_elements = count * sizeof(T), .dtype = DType::kRaw}));
}

}  // namespace

void OperationOrder::Add(const OperationTag& tag, uint64_t bytes) {
  const Entry entry{.bytes = bytes, .tag = tag};
  hash_ = Hash(hash_, &entry, sizeof entry);
  ++count_;
  if (entries_.size() < kOperationsKept) entries_.push_back(entry);
}

Status OperationOrder::Compare(Collective* host) {
  const Summary own{count_, entries_.size(), hash_};
  std::vector<Summary> all;
  TP_RETURN_IF_ERROR(Gather(host, &own, 1, &all));
  const bool alike =
      std::all_of(all.begin(), all.end(), [&](const Summary& one) { return one == all.front(); });

  uint64_t most = 0;
  for (const Summary& one : all) most = std::max(most, one.kept);
  if (!alike && !TP_PLANTED("comm.order_hash_ignored")) return FirstDifference(host, most);
  entries_.clear();
  count_ = hash_ = 0;
  return {};
}

Status OperationOrder::FirstDifference(Collective* host, uint64_t most) const {
  std::vector<Entry> own = entries_, all;
  own.resize(most);
  TP_RETURN_IF_ERROR(Gather(host, own.data(), most, &all));

  const auto text = [](uint64_t rank, const Entry& entry) {
    return "rank " + std::to_string(rank) + " has started " +
           (entry == Entry() ? "nothing more"
                             : entry.tag.Text() + " (" + std::to_string(entry.bytes) + " bytes)");
  };

  for (uint64_t i = 0; i < most; ++i) {
    for (uint64_t rank = 1; rank < host->world(); ++rank) {
      const Entry &first = all[i], &other = all[rank * most + i];
      if (first == other) continue;

      return Status(ErrorId::kCollectiveFailed,
                    "ranks have started different operations: at number " + std::to_string(i + 1) +
                        " since they were last compared " + text(0, first) + ", " +
                        text(rank, other));
    }
  }
  return Status(ErrorId::kCollectiveFailed,
                "ranks have started different operations behind the first " +
                    std::to_string(kOperationsKept) + " since they were last compared");
}

}  // namespace tidepool::trainer
