#include "client/memctl/views/usage.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/status.h"
#include "base/text/flag_error.h"
#include "base/text/suggest.h"

namespace tidepool::client {
namespace {

std::string Listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Other programs' names for our commands.
struct OtherName {
  std::string_view word, command;
};
constexpr std::array kOtherNames{
    OtherName{"jobs", "ps"},
    OtherName{"ls", "ps"},
    OtherName{"list", "ps"},
    OtherName{"kill", "job release JOB"},
    OtherName{"rm", "job release JOB"},
    OtherName{"delete", "job release JOB"},
    OtherName{"cancel", "job release JOB"},
    OtherName{"pause", "job suspend JOB"},
    OtherName{"suspend", "job suspend JOB"},
    OtherName{"resume", "job resume JOB"},
    OtherName{"release", "job release JOB"},
    OtherName{"stop", "shutdown"},
    OtherName{"restart", "shutdown"},
    OtherName{"log", "events"},
    OtherName{"tail", "events"},
    OtherName{"queue", "ps"},
    OtherName{"squeue", "ps"},
    OtherName{"watch", "top"},
    OtherName{"free", "status"},
    OtherName{"stats", "top"},
    OtherName{"info", "status"},
    OtherName{"show", "status"},
    OtherName{"check", "doctor"},
    OtherName{"ui", "page"},
    OtherName{"web", "page"},
    OtherName{"dashboard", "page"},
    OtherName{"mem", "residency"},
    OtherName{"memory", "residency"},
    OtherName{"trace", "timeline"},
    OtherName{"set", "job quota JOB"},
};

std::string GuessOf(const std::string& word, const UsageFailure& failure,
                    std::span<const std::string_view> names) {
  const auto other = std::find_if(kOtherNames.begin(), kOtherNames.end(),
                                  [&](const OtherName& each) { return each.word == word; });
  if (!failure.command.empty() || other == kOtherNames.end()) return DidYouMean(word, names);
  return "; did you mean \"" + std::string(other->command) + "\"?";
}

std::string WhatIsWrong(const UsageFailure& failure) {
  const std::string of_command = failure.command.empty() ? "" : failure.command + ": ";
  const auto is_flag = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
  const auto flag = std::find_if(failure.left.begin(), failure.left.end(), is_flag);
  if (flag != failure.left.end()) {
    const std::vector<std::string_view> flags(failure.flags.begin(), failure.flags.end());
    return of_command + "there is no flag " + *flag + " here" +
           DidYouMean(flag->substr(0, flag->find('=')), flags);
  }

  const std::vector<std::string_view> names(failure.commands.begin(), failure.commands.end());
  if (!failure.left.empty() && (failure.command.empty() || !names.empty())) {
    const std::string guess = GuessOf(failure.left[0], failure, names);
    const std::string all =
        guess.empty() && !failure.command.empty() ? "; there are " + Listed(failure.commands) : "";
    return of_command + "there is no command '" + failure.left[0] + "'" + guess + all;
  }
  if (!failure.left.empty()) return of_command + "'" + failure.left[0] + "' is one word too many";
  if (!failure.command.empty() && !names.empty() &&
      failure.why.find("subcommand") != std::string::npos) {
    return "memctl " + failure.command + " needs a word more: " + Listed(failure.commands);
  }

  return failure.why.empty() ? "no command is given"
                             : of_command + PlainFlagError(failure.why).what;
}

}  // namespace

std::string UsageText(const UsageFailure& failure) {
  const std::string help =
      failure.command.empty() ? "memctl --help" : "memctl " + failure.command + " --help";
  const std::string fix = failure.left.empty() ? PlainFlagError(failure.why).fix : "";
  return Status(ErrorId::kUsageError, WhatIsWrong(failure))
             .Fix(fix.empty() ? help + " shows what may stand there" : fix)
             .Format() +
         "\n";
}

}  // namespace tidepool::client
