// Flags that have an effect only beside others: alone they are refused, with the fix that the
// refusal names they are taken, and no pair of flags is refused without a word about one of them.
#include "trainer/cli/flag_effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/error_catalog.h"
#include "base/text/error_text.h"
#include "trainer/cli/flags.h"

namespace tidepool::trainer {
namespace flag_effects_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

struct Outcome {
  bool goes_on = false;
  int exit_code = -1;
  std::string out, err;
};

Outcome Parse(Words words) {
  words.insert(words.begin(), "trainer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Outcome outcome;
  CommandLine line;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.goes_on =
      ParseCommandLine(static_cast<int>(argv.size()), argv.data(), &line, &outcome.exit_code);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

// The lines of an error in one each (base/text/error_text.h).
std::string Unfolded(std::string text) {
  const std::string further = "\n" + std::string(kFoldIndent, ' ');
  for (size_t at = text.find(further); at != std::string::npos; at = text.find(further))
    text.replace(at, further.size(), " ");
  return text;
}

Words LineOf(std::initializer_list<Words> parts) {
  Words words{"run"};
  for (const Words& part : parts) words.insert(words.end(), part.begin(), part.end());
  return words;
}

// Flags of `run` that are switches.
constexpr const char* kSwitches[] = {"--checkpoint-activations",
                                     "--offload-activations",
                                     "--nesterov",
                                     "--standalone",
                                     "--or-new",
                                     "--deterministic",
                                     "--dynamic-rcache",
                                     "--no-prefetch",
                                     "--quiet",
                                     "--verbose",
                                     "--dry-run",
                                     "--json",
                                     "--sync-steps",
                                     "--print-config"};
// A value of each other one.
constexpr std::pair<const char*, const char*> kValues[] = {
    {"--preset", "tiny"},
    {"--moe", "experts=4"},
    {"--from", "saved"},
    {"--vocab-tiles", "2"},
    {"--tile-linear", "1MiB"},
    {"--seed", "2"},
    {"--dtype", "bf16"},
    {"--base", "saved"},
    {"--lora-rank", "8"},
    {"--lora-alpha", "32"},
    {"--lora-targets", "all"},
    {"--device", "cuda"},
    {"--rcache", "50%"},
    {"--device-memory", "8GiB"},
    {"--rates", "rates.json"},
    {"--chunk-size", "1MiB"},
    {"--plan", "zero2"},
    {"--pipeline", "2"},
    {"--topology", "topology.toml"},
    {"--columns", "2"},
    {"--gpu-states", "1GiB"},
    {"--accumulate", "2"},
    {"--durable-steps", "steps"},
    {"--data", "text"},
    {"--tokenizer", "dir"},
    {"--context", "64"},
    {"--batch", "4"},
    {"--steps", "100"},
    {"--lr", "0.01"},
    {"--schedule", "linear"},
    {"--warmup", "10"},
    {"--min-lr", "0.0001"},
    {"--weight-decay", "0"},
    {"--clip", "2"},
    {"--eval-every", "10"},
    {"--eval-batches", "2"},
    {"--optimizer", "adam"},
    {"--states", "fp32"},
    {"--beta1", "0.8"},
    {"--beta2", "0.9"},
    {"--eps", "1e-6"},
    {"--momentum", "0.5"},
    {"--dampening", "0.5"},
    {"--lr-decay", "0.1"},
    {"--socket-dir", "dir"},
    {"--job", "j"},
    {"--pool", "1GiB"},
    {"--resume", "auto"},
    {"--server-timeout", "5s"},
    {"--wait", "1h"},
    {"--rejoin-timeout", "5s"},
    {"--threads", "1"},
    {"--checkpoint-every", "100"},
    {"--checkpoint-dir", "dir"},
    {"--keep", "2"},
    {"--out", "dir"},
    {"--save", "dir"},
    {"--trace", "file"},
    {"--log-every", "5"},
};

// All flags of `run`; nothing for a switch.
const std::map<std::string, std::string>& Samples() {
  static const std::map<std::string, std::string> samples = [] {
    std::map<std::string, std::string> all(std::begin(kValues), std::end(kValues));
    for (const char* name : kSwitches) all[name] = "";
    return all;
  }();
  return samples;
}

Words Sample(const std::string& flag) {
  const std::string& value = Samples().at(flag);
  return value.empty() ? Words{flag} : Words{flag, value};
}

// What leaves the flag of this row without an effect.
Words Contrary(const FlagEffect& effect) {
  const std::string other = effect.other;
  if (other == "--optimizer")
    return {other, std::string(effect.values).starts_with("adam") ? "sgd" : "lion"};
  if (other == "--schedule") return {other, "constant"};
  if (other == "--eval-every") return {other, "0"};
  // The fix is to leave the other out: the switch is the contrary.
  if (std::string(effect.values) == "false") return {other};
  return {};
}

// The words that a fix says to give; none where it says to leave something out.
Words Given(const std::string& fix) {
  std::istringstream text(fix);
  std::string verb, word;
  text >> verb;
  Words words;
  while (verb == "give" && text >> word) words.push_back(word);
  return words;
}

TEST(FlagEffects, TheSamplesAreAllFlagsOfRun) {
  const std::string help = Parse({"run", "--help"}).out;
  std::set<std::string> flags;
  const std::regex name("\n  (--[a-z0-9-]+)");
  for (std::sregex_iterator at(help.begin(), help.end(), name), end; at != end; ++at)
    flags.insert((*at)[1]);
  flags.erase("--config");  // which reads a file

  std::set<std::string> sampled;
  for (const auto& [flag, value] : Samples()) sampled.insert(flag);
  EXPECT_EQ(flags, sampled);
}

TEST(FlagEffects, WithoutAnEffectAFlagIsRefusedAndWithItsFixTaken) {
  for (const FlagEffect& effect : FlagEffects()) {
    const std::string flag = effect.flag;
    const Words fix = Given(effect.fix);

    Words others, given;
    for (const FlagEffect& each : FlagEffects()) {
      const Words words = flag == each.flag ? Given(each.fix) : Words();
      given.insert(given.end(), words.begin(), words.end());
      if (&each != &effect) others.insert(others.end(), words.begin(), words.end());
    }

    const Outcome refused = Parse(LineOf({Sample(flag), others, Contrary(effect)}));
    EXPECT_FALSE(refused.goes_on) << flag;
    EXPECT_EQ(refused.exit_code, kExitUsage) << flag;
    EXPECT_THAT(refused.err, HasSubstr(flag + " has no effect")) << flag;
    EXPECT_THAT(Unfolded(refused.err), HasSubstr(effect.fix)) << flag;

    const Outcome taken = Parse(LineOf({Sample(flag), given}));
    EXPECT_TRUE(taken.goes_on) << flag << ": " << taken.err;
  }
}

TEST(FlagEffects, NoPairIsRefusedWithoutAWordAboutOneOfBoth) {
  for (const auto& [first, unused] : Samples()) {
    for (const auto& [second, unused2] : Samples()) {
      if (second <= first || first == "--print-config" || second == "--print-config") continue;
      const Outcome outcome = Parse(LineOf({Sample(first), Sample(second)}));
      if (outcome.goes_on) continue;
      EXPECT_EQ(outcome.exit_code, kExitUsage) << first << " " << second;
      EXPECT_THAT(outcome.err, AnyOf(HasSubstr(first), HasSubstr(second)));
      EXPECT_THAT(outcome.err, HasSubstr("fix:")) << outcome.err;
    }
  }
}

TEST(FlagEffects, OfCheckpointsAndOfAPrivateServerAreToldTogether) {
  const Outcome folder = Parse({"run", "--checkpoint-dir", "dir"});
  EXPECT_EQ(folder.exit_code, kExitUsage);
  EXPECT_THAT(folder.err, HasSubstr("without --checkpoint-every or --resume"));
  EXPECT_TRUE(Parse({"run", "--checkpoint-dir", "dir", "--checkpoint-every", "2"}).goes_on);
  EXPECT_TRUE(Parse({"run", "--checkpoint-dir", "dir", "--resume", "latest"}).goes_on);

  const Outcome kept = Parse({"run", "--standalone", "--resume", "auto"});
  EXPECT_EQ(kept.exit_code, kExitUsage);
  EXPECT_THAT(kept.err, HasSubstr("--resume auto has no effect beside --standalone"));
  EXPECT_TRUE(Parse({"run", "--standalone", "--resume", "auto", "--checkpoint-dir", "d"}).goes_on);
  EXPECT_TRUE(Parse({"run", "--standalone", "--resume", "never"}).goes_on);
}

TEST(FlagEffects, NumbersThatContradictOneAnotherAreRefused) {
  const Outcome warmup = Parse({"run", "--warmup", "30", "--steps", "10"});
  EXPECT_FALSE(warmup.goes_on);
  EXPECT_THAT(warmup.err, HasSubstr("--warmup 30 is above --steps 10"));
  EXPECT_TRUE(Parse({"run", "--steps", "10"}).goes_on) << "the default warm-up fits any run";
  EXPECT_TRUE(Parse({"run", "--warmup", "10", "--steps", "10"}).goes_on);

  const Outcome rate = Parse({"run", "--min-lr", "0.1", "--lr", "0.01"});
  EXPECT_FALSE(rate.goes_on);
  EXPECT_THAT(rate.err, HasSubstr("--min-lr 0.1 is above --lr 0.01"));
  EXPECT_TRUE(Parse({"run", "--lr", "0.00001"}).goes_on);
}

TEST(FlagEffects, UnderTorchrunARunMayResumeByItself) {
  EXPECT_FALSE(Parse({"run", "--or-new"}).goes_on);
  setenv("TORCHELASTIC_RUN_ID", "1", 1);
  EXPECT_TRUE(Parse({"run", "--or-new"}).goes_on);
  EXPECT_FALSE(Parse({"run", "--or-new", "--resume", "never"}).goes_on);
  unsetenv("TORCHELASTIC_RUN_ID");
}

TEST(FlagEffects, EstimateAndLaunchKnowThem) {
  EXPECT_THAT(Parse({"estimate", "--momentum", "0.5"}).err,
              HasSubstr("--momentum has no effect beside --optimizer adamw"));
  EXPECT_THAT(Parse({"launch", "-n", "2", "--", "run", "--pool", "1GiB"}).err,
              HasSubstr("--pool has no effect without --standalone"));
}

TEST(FlagEffects, APrintedConfigHasNoneWithoutAnEffect) {
  const Outcome printed = Parse({"run", "--print-config"});
  EXPECT_THAT(printed.out, Not(HasSubstr("\nmomentum =")));
  EXPECT_THAT(printed.out, HasSubstr("\nbeta1 = "));
  const Outcome sgd = Parse({"run", "--print-config", "--optimizer", "sgd"});
  EXPECT_THAT(sgd.out, HasSubstr("\nmomentum = "));
  EXPECT_THAT(sgd.out, Not(HasSubstr("\nbeta1 =")));
}

}  // namespace flag_effects_test
}  // namespace tidepool::trainer
