// The toy models of ToyRun.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/random.h"
#include "tests/trainer/cache/toy_run.h"

namespace tidepool::trainer {

ToyModel MakeToyModel(uint64_t seed, int layers, uint32_t groups) {
  SplitMix64 random(seed);
  ToyModel model;
  const auto add = [&](uint32_t group) {
    ParameterNote note;
    note.name = "p" + std::to_string(model.notes.size());
    note.dims = {1 + random.Below(group == 0 ? 150 : 1) + (group == 0 ? 0 : 99)};
    note.data_group = group;
    model.notes.push_back(note);
    return static_cast<uint32_t>(model.notes.size() - 1);
  };
  std::vector<uint32_t> again;
  for (int layer = 0; layer < layers; ++layer) {
    const uint32_t a = add(0), b = add(0), c = add(0);
    model.forward.push_back({a});
    model.forward.push_back({b, c});
    if (groups > 1) {
      model.forward.emplace_back();
      for (uint32_t group = 1; group < groups; ++group) model.forward.back().push_back(add(group));
    }
    if (layer % 4 == 3 && !again.empty()) model.forward.push_back({again.back()});
    if (layer % 4 == 1) again.push_back(c);
  }
  model.no_gradient.assign(model.notes.size(), false);
  model.fires_twice.assign(model.notes.size(), false);
  return model;
}

ToyModel MakeToyExperts(uint64_t seed, int layers, const ToyExperts& with,
                        std::vector<std::vector<Rank>>* groups) {
  const uint32_t experts = with.experts, world = with.world;
  const std::vector<uint32_t>& sharers = with.sharers;
  ToyModel model = MakeToyModel(seed, layers, 1);
  std::vector<uint32_t> kinds = sharers;
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  std::map<uint32_t, uint32_t> first_group{{1, 0}};
  for (const uint32_t sharing : kinds) {
    if (sharing == 1) continue;
    first_group[sharing] = static_cast<uint32_t>(groups->size());
    for (uint32_t i = 0; i < sharing; ++i) {
      groups->emplace_back();
      for (Rank rank = i; rank < world; rank += sharing) groups->back().push_back(rank);
    }
  }

  std::vector<std::vector<uint32_t>> forward;
  model.like.emplace_back();
  uint32_t unit = 0;
  int layer = 0;
  for (const auto& operators : model.forward) {
    forward.push_back(operators);
    // A layer's second operator has two parameters.
    if (operators.size() != 2) continue;
    const uint32_t sharing = sharers[static_cast<size_t>(layer++) % sharers.size()];
    for (uint32_t expert = 0; expert < experts; ++expert) {
      ++unit;
      const uint32_t each = experts / sharing, owner = expert / each;
      model.like.emplace_back();
      for (uint32_t other = 0; other < sharing; ++other)
        model.like.back().push_back(unit - expert + other * each + expert % each);
      for (uint64_t part = 0; part < 2; ++part) {
        ParameterNote note;
        note.name = "e" + std::to_string(unit) + "." + std::to_string(part);
        note.dims = {60 + 20 * part};
        note.data_group = sharing == 1 ? 0 : first_group[sharing] + owner;
        note.unit = unit;
        forward.push_back({static_cast<uint32_t>(model.notes.size())});
        model.notes.push_back(note);
      }
    }
  }
  model.forward = std::move(forward);
  model.no_gradient.assign(model.notes.size(), false);
  model.fires_twice.assign(model.notes.size(), false);
  return model;
}

void FreezeEveryThird(ToyModel* model, uint32_t first) {
  for (uint32_t note = first; note < model->notes.size(); note += 3)
    model->notes[note].frozen = model->no_gradient[note] = true;
}

}  // namespace tidepool::trainer
