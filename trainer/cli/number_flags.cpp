#include "trainer/cli/number_flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <system_error>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr long double kAny = 18446744073709551615.0L;
constexpr long double kSteps = 1e12L;

constexpr NumberFlag Whole(const char* name, long double least, long double most, const char* why,
                           const char* command = "") {
  return {name, true, least, most, false, false, why, command};
}
constexpr NumberFlag Real(const char* name, long double least, long double most, const char* why) {
  return {name, false, least, most, false, false, why};
}
constexpr NumberFlag Share(const char* name, const char* why) {
  return {name, false, 0, 1, false, true, why};
}

constexpr std::array kFlags{
    Whole("--seed", 0, kAny, "a seed has 64 bits"),
    Whole("--vocab-tiles", 1, 65536,
          "1 is all logits at once, and a tile has at least one entry of the vocabulary"),
    Whole("--accumulate", 1, 65536,
          "a step has at least one micro-batch, and memserver counts them up to there"),
    Whole("--context", 0, 1 << 24, "0 is the preset's, and no model here reads longer sequences"),
    Whole("--batch", 1, 1 << 20,
          "a micro-batch has at least one sequence, and is in memory as a whole"),
    Whole("--lora-rank", 1, 65536, "adapters have at least one row, and no layer here is wider"),
    NumberFlag{"--lora-alpha", false, 0, 1e6L, true, false,
               "adapters that count 0 times do nothing, and with more gradients overflow"},
    Whole("--steps", 1, 1e9L, "a run takes at least one step, and memserver numbers all of them"),
    Real("--lr", 0, 1000,
         "0 changes nothing, a negative rate would climb, and with more weights overflow"),
    Real("--min-lr", 0, 1000,
         "the schedule ends there: 0 changes nothing, a negative rate would climb"),
    Whole("--warmup", 0, kSteps, "it counts steps; 0 is no warm-up"),
    Real("--weight-decay", 0, 1000, "0 is none, and a negative one lets weights grow without end"),
    Real("--clip", 0, 1e9L, "0 is no clipping, and no norm is negative"),
    Whole("--eval-every", 0, kSteps, "it counts steps; 0 is never"),
    Whole("--eval-batches", 1, 65536,
          "a held-out loss needs one, and all of them are kept in memory (--eval-every 0: none)"),
    Share("--beta1",
          "a moment that decays by a factor of 1 or more never forgets, and grows without end"),
    Share("--beta2",
          "a moment that decays by a factor of 1 or more never forgets, and grows without end"),
    Real("--eps", 0, 1, "it keeps the update from a division by 0; with more nothing else counts"),
    Share("--momentum",
          "a momentum that decays by a factor of 1 or more grows without end; 0 is none"),
    Real("--dampening", 0, 1, "it is the share of a gradient that is left out"),
    Real("--lr-decay", 0, 1e6L, "the rate is divided by 1 + steps times this: 0 is none"),
    Whole("--checkpoint-every", 0, kSteps, "it counts steps; 0 is never"),
    Whole("--keep", 0, 1e6L, "it counts checkpoints; 0 keeps all"),
    Whole("--threads", 0, 4096, "0 leaves the number to trainer"),
    Whole("--log-every", 1, kSteps, "it counts steps; --quiet shows none"),
    Whole("--tokens", 1, 1 << 20, "a sample has at least one token"),
    Real("--temperature", 0, 1000, "0 takes the likeliest token, and with more all are alike"),
    Whole("--top-k", 0, 1 << 24, "0 is all tokens, and no vocabulary here is larger"),
    Whole("--ranks", 1, 64, "a job has 1 to 64 ranks on one node", "launch"),
    Whole("--ranks", 0, 64,
          "0 is as many as the launcher started, and a job has at most 64 ranks on one node"),
    Whole("--max-restarts", 0, 1e6L, "it counts restarts; 0 is none"),
};

std::string_view WithoutSignAndZeros(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  while (text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9')
    text.remove_prefix(1);
  return text;
}

// The value that the program will see; nullopt for text that is not a number, or overflows.
std::optional<long double> Parsed(const NumberFlag& flag, std::string_view text) {
  const char* end = text.data() + text.size();
  if (flag.whole) {
    uint64_t value = 0;
    const auto [behind, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && behind == end ? std::optional<long double>(value) : std::nullopt;
  }
  double value = 0;
  const auto [behind, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || behind != end || !std::isfinite(value)) return std::nullopt;
  return static_cast<float>(value);
}

bool IsInRange(const NumberFlag& flag, long double value) {
  const bool high_enough = flag.above ? value > flag.least : value >= flag.least;
  const bool low_enough = flag.below ? value < flag.most : value <= flag.most;
  return high_enough && low_enough;
}

std::string Text(long double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), value < 1e7L ? "%.7Lg" : "%.0Lf", value);
  return text.data();
}

std::string RangeOf(const NumberFlag& flag) {
  return (flag.above ? "above " : "") + Text(flag.least) + " to " + (flag.below ? "below " : "") +
         Text(flag.most);
}

}  // namespace

std::span<const NumberFlag> NumberFlags() {
  return kFlags;
}

const NumberFlag* FindNumberFlag(std::string_view command, std::string_view name) {
  const auto found = std::find_if(kFlags.begin(), kFlags.end(), [&](const NumberFlag& flag) {
    return flag.name == name && (flag.command[0] == '\0' || flag.command == command);
  });
  return found != kFlags.end() ? &*found : nullptr;
}

std::string CheckNumber(const NumberFlag& flag, std::string* text) {
  const std::string_view plain = WithoutSignAndZeros(*text);
  const std::optional<long double> value = Parsed(flag, plain);
  if ((value && IsInRange(flag, *value)) || TP_PLANTED("trainer.numbers_unchecked")) {
    text->assign(std::string(plain));
    return {};
  }
  return *text + " is not in range " + RangeOf(flag) + (flag.whole ? ", a whole number: " : ": ") +
         flag.why;
}

}  // namespace tidepool::trainer
