#include "memserver/residency/kept/step_slots.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "base/point.h"

namespace tidepool::memserver {
namespace {

bool IsIn(std::span<const uint64_t> set, uint64_t parameter) {
  return !set.empty() && (set[parameter / 64] >> parameter % 64 & 1) != 0;
}

}  // namespace

StepSlots::StepSlots(const shm::JobSpec& spec, JobRecord* record, std::byte* at)
    : spec_(&spec), record_(record), at_(at) {}

StepSlots::Slot StepSlots::SlotOf(Version version) const {
  const uint64_t groups = spec_->parameter_groups.size(), parameters = spec_->parameters.size();
  std::byte* const begin = at_ + version % 2 * shm::StepSlotBytes(groups, parameters);
  std::byte* const numbers = begin + sizeof(StepSlotHead);
  std::byte* const words = numbers + groups * sizeof(GroupNumbers);
  return {reinterpret_cast<StepSlotHead*>(begin),
          {reinterpret_cast<GroupNumbers*>(numbers), groups},
          {reinterpret_cast<uint32_t*>(words), parameters}};
}

// Words that do not count are not read: a job that changes only numbers has none.
uint32_t StepSlots::CrcOf(const Slot& slot) {
  const auto head = std::as_bytes(std::span(slot.head, 1)).first(offsetof(StepSlotHead, crc));
  const uint32_t crc = Crc32c(std::as_bytes(slot.numbers), Crc32c(head));
  return slot.head->parameters == 0 ? crc : Crc32c(std::as_bytes(slot.words), crc);
}

std::optional<StepView> StepSlots::Of(Version version) const {
  if (!Exist()) return std::nullopt;
  const uint64_t word = record_->slotted_from.load(std::memory_order_relaxed);
  // A word of a step that was never sealed names a later version.
  if (word == 0 || version < SlottedFrom(record_->nonce, word)) return std::nullopt;
  const Slot slot = SlotOf(version);
  return StepView{slot.head->groups, slot.numbers,
                  slot.words.first(slot.head->parameters == 0 ? 0 : slot.words.size())};
}

void StepSlots::Write(const StepRecord& step, const StepSaid& said) {
  TP_CHECK(Exist() || !said.any(), "a job without slots is told nothing for them");
  if (!Exist()) return;
  const bool is_first = record_->slotted_from.load(std::memory_order_relaxed) == 0;
  if (is_first && !said.any()) return;

  const std::optional<StepView> before = Of(step.version - 1);
  std::span<const uint32_t> counted = before ? before->words : std::span<const uint32_t>();
  if (TP_PLANTED("update.missed_not_carried")) counted = {};
  const Slot slot = SlotOf(step.version);
  const bool has_words = !counted.empty() || !said.untouched.empty();
  *slot.head = {.version = step.version,
                .job_nonce = record_->nonce,
                .groups = said.groups,
                .parameters = static_cast<uint32_t>(has_words ? slot.words.size() : 0),
                .crc = 0};

  std::fill(slot.numbers.begin(), slot.numbers.end(), GroupNumbers{});
  for (uint32_t group = 0; group < slot.numbers.size(); ++group) {
    if ((said.groups >> group & 1) != 0) slot.numbers[group] = said.numbers[group];
  }
  for (size_t i = 0; i < slot.words.size() && has_words; ++i) {
    const uint32_t missed = counted.empty() ? 0 : StepsMissed(counted[i]);
    const bool alone = step.skipped == 0 && IsIn(said.untouched, i);
    slot.words[i] = alone ? kLeftAlone | (missed + 1) : missed;
  }

  slot.head->crc = CrcOf(slot);
  if (is_first) {
    record_->slotted_from.store(SlottedWord(record_->nonce, step.version),
                                std::memory_order_release);
  }
  TP_POINT("server.step_slotted");
}

const char* StepSlots::WhyBad(Version sealed) const {
  const uint64_t word = record_->slotted_from.load(std::memory_order_acquire);
  if (word == 0) return nullptr;
  const std::optional<Version> from = SlottedFrom(record_->nonce, word);
  if (!from || *from == 0 || *from > sealed + 1)
    return "its word for the first step slot does not fit its check";
  if (*from > sealed) return nullptr;  // that step was never sealed

  const Slot slot = SlotOf(sealed);
  const StepSlotHead& head = *slot.head;
  const uint64_t groups = spec_->parameter_groups.size();
  if (head.crc != CrcOf(slot) && !TP_PLANTED("recover.step_slot_unchecked"))
    return "the check over its step slot does not fit";

  if (head.version != sealed || head.job_nonce != record_->nonce)
    return "its step slot is of another step";
  if ((groups < 64 && head.groups >> groups != 0) ||
      (head.parameters != 0 && head.parameters != slot.words.size())) {
    return "its step slot counts groups or parameters that it does not have";
  }

  for (uint32_t group = 0; group < groups; ++group) {
    const bool counts = (head.groups >> group & 1) != 0;
    if (counts && tidepool::WhyBad(spec_->optimizer, spec_->dtype, slot.numbers[group]) != nullptr)
      return "its step slot has impossible numbers of a parameter group";
  }

  const StepRecord& step = record_->steps[sealed % 2];
  for (size_t i = 0; i < slot.words.size() && head.parameters != 0; ++i) {
    const bool takes_part = step.skipped == 0 && (slot.words[i] & kLeftAlone) == 0;
    if (StepsMissed(slot.words[i]) + (takes_part ? 1 : 0) > step.optimizer_step)
      return "its step slot has a parameter that missed more steps than there were";
  }
  return nullptr;
}

}  // namespace tidepool::memserver
