#include "trainer/run/resuming/attempt_count.h"

#include <charconv>
#include <utility>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

// Parses and removes the number at the start of `text`; nullopt if there is none.
std::optional<uint64_t> TakeNumber(std::string_view* text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return value;
}

}  // namespace

AttemptCount::AttemptCount(const std::string& text) {
  std::string_view rest(text);
  const auto fruitless = TakeNumber(&rest);
  if (!fruitless || *fruitless >= kFruitlessAttempts || !rest.starts_with(':')) return;
  rest.remove_prefix(1);
  const auto counted = TakeNumber(&rest);
  if (!counted || !rest.empty()) return;
  fruitless_ = static_cast<uint32_t>(*fruitless);
  counted_ = *counted;
}

void AttemptCount::BeginsAt(Version sealed) {
  if (!counted_ || sealed < *counted_) counted_ = sealed;
}

bool AttemptCount::MayTryAgain(Version sealed) {
  const Version before = TP_PLANTED("run.attempts_forgotten") ? 0 : counted_.value_or(0);
  fruitless_ = sealed > before ? 0 : fruitless_ + 1;
  counted_ = sealed;
  return fruitless_ < kFruitlessAttempts;
}

std::string AttemptCount::Text() const {
  return std::to_string(fruitless_) + ":" + std::to_string(counted_.value_or(0));
}

}  // namespace tidepool::trainer
