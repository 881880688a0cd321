#include "trainer/module/module_experts.h"

#include <string>

#include "trainer/engine/torch_errors.h"
#include "trainer/run/expert_mover.h"

namespace tidepool::trainer {

ModuleExperts::ModuleExperts(const ModuleExpertParts& parts) : parts_(parts) {
  const ChunkLayout& layout = *parts_.layout;
  parameters_.resize(layout.Units() + 1);
  for (ParameterId id = 0; id < layout.parameters.size(); ++id) {
    if (!layout.IsFrozen(id))
      parameters_[layout.chunks[layout.parameters[id].chunk].unit].push_back(id);
  }

  Collective* const all = parts_.session->routing();
  if (all == nullptr) return;
  TrainingEngine* const engine = parts_.engine;
  mover_ = MoverOf({.all = all, .clock = parts_.clock, .meanwhile = [engine] {
                      return engine->open_cache()->Progress();
                    }});
}

Result<std::vector<bool>> ModuleExperts::Route(std::span<const uint32_t> units,
                                               const std::vector<int64_t>& counts) {
  if (units.size() != counts.size())
    return Status(ErrorId::kUsageError, std::to_string(units.size()) + " experts have " +
                                            std::to_string(counts.size()) + " numbers of tokens");
  std::vector<int64_t> of_all = counts;
  if (mover_.counts) TP_RETURN_IF_ERROR(CatchTorch([&] { of_all = mover_.counts(counts); }));

  std::vector<bool> used(units.size(), false);
  for (size_t i = 0; i < of_all.size(); ++i) {
    if (of_all[i] > 0) used[i % units.size()] = true;
  }
  const bool leaves_out =
      parts_.engine->RouteUnits({.units = units, .used = &used, .used_anywhere = &used});
  TP_RETURN_IF_ERROR(parts_.steps->Check());
  // A model so small that it is resident has no unit of its own chunks.
  for (size_t i = 0; i < used.size(); ++i)
    used[i] = used[i] || !leaves_out || !IsUnit(units[i]) || parameters_[units[i]].empty();
  return used;
}

Status ModuleExperts::PassBy(uint32_t unit) {
  if (!IsUnit(unit))
    return Status(ErrorId::kUsageError, "there is no expert " + std::to_string(unit));
  parts_.engine->PassUnitBy(unit);
  for (const ParameterId parameter : parameters_[unit]) parts_.steps->LeaveOut(parameter);
  return parts_.steps->Check();
}

}  // namespace tidepool::trainer
