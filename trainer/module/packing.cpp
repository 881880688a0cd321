#include "trainer/module/packing.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace tidepool::trainer {
namespace {

// Indices of notes, the trained ones first.
Result<std::vector<uint32_t>> OrderOf(const std::vector<ParameterNote>& notes,
                                      const PackingWish& wish) {
  const auto count = static_cast<uint32_t>(notes.size());
  std::vector<uint32_t> order =
      wish.profile != nullptr ? FirstUses(wish.profile->trace, count) : FirstUses({}, count);
  const auto frozen = std::stable_partition(order.begin(), order.end(),
                                            [&](uint32_t i) { return !notes[i].frozen; });
  std::sort(frozen, order.end());

  if (wish.held.empty()) return order;

  std::unordered_map<std::string, uint32_t> index;
  for (auto i = order.begin(); i != frozen; ++i) index.emplace(notes[*i].name, *i);
  std::vector<uint32_t> held;
  for (const std::string& name : wish.held) {
    const auto found = index.find(name);
    if (found == index.end())
      return Status(ErrorId::kJobMismatch, "the job has a parameter " + name);
    held.push_back(found->second);
    index.erase(found);
  }
  if (!index.empty())
    return Status(ErrorId::kJobMismatch, "the job has no parameter " + index.begin()->first);

  std::copy(held.begin(), held.end(), order.begin());
  return order;
}

}  // namespace

Result<ChunkLayout> PackModule(std::vector<ParameterNote> notes, const PackingWish& wish,
                               const LayoutOptions& options) {
  if (wish.profile != nullptr) {
    const std::vector<bool> again =
        UsedBehindGradient(wish.profile->trace, static_cast<uint32_t>(notes.size()));
    for (size_t i = 0; i < notes.size(); ++i) {
      if (again[i] && !notes[i].frozen) notes[i].multi_use = true;
    }
  }

  TP_ASSIGN_OR_RETURN(const std::vector<uint32_t> order, OrderOf(notes, wish));
  std::vector<ParameterNote> ordered;
  for (const uint32_t index : order) ordered.push_back(std::move(notes[index]));
  TP_ASSIGN_OR_RETURN(ChunkLayout layout, BuildLayout(ordered, options));

  std::vector<ParameterId> of_note(order.size());
  for (uint32_t place = 0; place < order.size(); ++place)
    of_note[order[place]] = layout.of_note[place];
  layout.of_note = std::move(of_note);
  for (ParameterPlace& parameter : layout.parameters) parameter.note = order[parameter.note];
  return layout;
}

bool PackedAlike(const client::JobSpec& a, const client::JobSpec& b) {
  const auto same_name = [](const client::ParameterSpec& one, const client::ParameterSpec& other) {
    return one.name == other.name;
  };
  return a.rcache_bytes == b.rcache_bytes &&
         std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(),
                    b.parameters.end(), same_name);
}

}  // namespace tidepool::trainer
