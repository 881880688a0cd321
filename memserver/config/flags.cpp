#include "memserver/config/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/completion.h"
#include "base/text/flag_error.h"
#include "base/text/suggest.h"
#include "memserver/config/config.h"

namespace tidepool::memserver {

namespace {

struct CommandEntry {
  std::string_view name;
  Command command;
  std::string_view description;
};

constexpr std::array<CommandEntry, 9> kCommands{{
    {"run", Command::kRun, "serve trainers until SIGTERM or Ctrl-C (the default)"},
    {"keeper", Command::kKeeper,
     "hold the jobs' memory for a memserver run --keeper external, beside it: the second container "
     "of a pod"},
    {"check", Command::kCheck,
     "check configuration and host; changes nothing; exit 0 fit, 1 with warnings, 2 bad "
     "configuration, 9 unfit"},
    {"config", Command::kConfig,
     "print the settings that hold and their origins; --defaults: a commented file"},
    {"bench", Command::kBench,
     "copy: how fast each way of copying is on this machine; --bytes SIZE of memory (2GiB); nvme "
     "DIR: which blocks suit a drive; -o json"},
    {"topo", Command::kTopo,
     "print the machine, or that of --topology FILE, and the places for pool and workers on it, as "
     "JSON; changes nothing"},
    {"version", Command::kVersion, "print versions of program and protocol"},
    {"help", Command::kHelp, "print this text"},
    {"completion", Command::kCompletion,
     "print what a shell completes this command line with: bash, zsh or fish"},
}};

// Flags of one command, in addition to the settings.
struct CommandFlag {
  Command command;
  std::string_view name, kind, description;  // kind: empty when it takes no value
};
constexpr std::array<CommandFlag, 7> kCommandFlags{{
    {Command::kRun, "--no-respawn", "", "short for --respawn off"},
    {Command::kRun, "--discard-kept", "",
     "start clean: give up the jobs that a keeper still holds"},
    {Command::kRun, "--parent-pid", "PID",
     "for programs that start a private server: end when that process ends"},
    {Command::kRun, "--end-with-fd", "N",
     "likewise: end when the other end of this inherited pipe is closed"},
    {Command::kConfig, "--defaults", "",
     "a commented file with all settings as they are where nothing is given"},
    {Command::kBench, "--bytes", "SIZE", "of memory, for `copy` (2GiB)"},
    {Command::kBench, "--output", "table|json", "form of the result; short: -o"},
}};

constexpr std::string_view kExamples =
    "memserver holds the host memory and the optimizer of training jobs on this machine.\n\n"
    "examples:\n"
    "  memserver run --pool 8GiB                  serve with 8 GiB for all jobs; trainers find it "
    "by themselves\n"
    "  memserver run --pool 50% --socket-dir /tmp/mine   a second server beside the first\n"
    "  memserver check --pool 8GiB                is this machine fit for that?\n"
    "  memserver config --defaults > memserver.toml\n"
    "  memserver run --config memserver.toml\n\n";

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

Status UsageError(const std::string& text) {
  FlagError error = PlainFlagError(text);
  return Status(ErrorId::kUsageError, std::move(error.what))
      .Fix(error.fix.empty() ? "memserver --help lists commands and flags" : std::move(error.fix));
}

// Words of the command line that CLI11 did not understand.
Status UnknownWords(const std::vector<std::string>& words) {
  std::vector<std::string_view> known{"--config", "--help"};
  for (const Setting& setting : Settings()) known.push_back(setting.flag);
  const std::string word = words.front().substr(0, words.front().find('='));
  return UsageError("\"" + word + "\" is not known here" + DidYouMean(word, known));
}

Result<Command> CommandOf(const std::string& word) {
  std::vector<std::string_view> names;
  for (const CommandEntry& entry : kCommands) {
    if (entry.name == word) return entry.command;
    names.push_back(entry.name);
  }
  return UsageError("there is no command \"" + word + "\"" + DidYouMean(word, names));
}

// memserver keep --listen-fd N --lease-ms N --log-level N --log-format N [--no-respawn] --
// COMMAND...: how memserver starts its keeper. Not for people, so not in --help, and with the
// numbers of LogLevel and LogFormat.
Status ParseKeep(std::vector<std::string> words, KeeperOptions* options) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (dashes == words.end()) return UsageError("`keep` is given a command after --");
  options->command.assign(dashes + 1, words.end());
  words.erase(dashes, words.end());
  CLI::App app;
  app.set_help_flag();
  app.add_option("--listen-fd", options->listen_fd)->required()->check(CLI::Range(3, 1 << 20));
  app.add_option("--lease-ms", options->lease_ms)->required();
  app.add_option("--log-level", options->log_level)
      ->check(CLI::Range(0, static_cast<int>(LogLevel::kError)));

  app.add_option("--log-format", options->log_format)
      ->check(CLI::Range(0, static_cast<int>(LogFormat::kJson)));
  app.add_flag("--no-respawn", options->no_respawn);
  try {
    std::reverse(words.begin(), words.end());
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return UsageError(error.what());
  }
  return Status();
}

Status ParseOptions(std::vector<std::string> words, Flags* flags) {
  CLI::App app;
  app.set_help_flag();  // our own text instead
  bool help = false;
  app.add_flag("-h,--help", help);
  if (flags->command != Command::kVersion) app.add_option("--config", flags->config_file);
  if (flags->command == Command::kConfig) app.add_flag("--defaults", flags->defaults);
  if (flags->command == Command::kCompletion)
    app.add_option("shell", flags->shell)->required()->check(CLI::IsMember(kCompletionShells));
  std::string form = "table";

  if (flags->command == Command::kBench) {
    app.add_option("what", flags->bench_what)->check(CLI::IsMember({"copy", "nvme"}));
    app.add_option("directory", flags->bench_directory);
    app.add_option("--bytes", flags->bench_bytes);
    app.add_option("-o,--output", form)->check(CLI::IsMember({"table", "json"}));
  }
  if (flags->command == Command::kRun) {
    app.add_option("--parent-pid", flags->parent_pid)->check(CLI::PositiveNumber);
    app.add_option("--end-with-fd", flags->end_with_fd)->check(CLI::NonNegativeNumber);
    app.add_flag("--discard-kept", flags->discard_kept);
    app.add_flag_callback("--no-respawn", [flags] { flags->settings["--respawn"] = "off"; });
  }

  std::map<std::string, std::string> values;
  std::vector<std::pair<std::string, CLI::Option*>> options;
  for (const Setting& setting : Settings()) {
    const std::string name(setting.flag);
    options.emplace_back(name, app.add_option(name, values[name]));
    if (name == "--nvme") options.back().second->join(',');  // may be given several times
  }

  try {
    std::reverse(words.begin(), words.end());  // CLI11 takes words from the back
    app.parse(words);
  } catch (const CLI::ExtrasError&) {
    return UnknownWords(app.remaining());
  } catch (const CLI::ParseError& error) {
    return UsageError(error.what());
  }

  if (help) flags->command = Command::kHelp;
  if (flags->command == Command::kBench && flags->bench_what.empty())
    return UsageError("bench has nothing to measure: copy, or nvme DIR");
  flags->json = form == "json";
  for (const auto& [name, option] : options) {
    if (option->count() > 0) flags->settings[name] = values[name];
  }
  return Status();
}

}  // namespace

Result<Flags> ParseFlags(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  Flags flags;
  if (!words.empty() && words.front() == "--version") words.front() = "version";
  if (!words.empty() && words.front() == "keep") {
    flags.command = Command::kKeep;
    words.erase(words.begin());
    TP_RETURN_IF_ERROR(ParseKeep(std::move(words), &flags.keep));
    return flags;
  }

  if (words.size() == 2 && words.front() == "gpu-load") {
    flags.command = Command::kGpuLoad;
    flags.gpu = words.back();
    return flags;
  }

  if (words.size() == 4 && words.front() == "measure-rates") {
    flags.command = Command::kMeasureRates;
    flags.rates.assign(words.begin() + 1, words.end());
    return flags;
  }
  if (!words.empty() && !words.front().empty() && words.front().front() != '-') {
    TP_ASSIGN_OR_RETURN(flags.command, CommandOf(words.front()));
    words.erase(words.begin());
  }
  TP_RETURN_IF_ERROR(ParseOptions(std::move(words), &flags));
  return flags;
}

std::string HelpText() {
  std::string text(kExamples);
  text += "commands:\n";
  for (const CommandEntry& entry : kCommands)
    text += "  " + Padded(std::string(entry.name), 12) + std::string(entry.description) + "\n";
  text += "\nsettings (flag > environment TIDEPOOL_... > --config FILE > default):\n";
  for (const Setting& setting : Settings()) {
    text += "  " + Padded(std::string(setting.flag) + " " + std::string(setting.value_kind), 26) +
            std::string(setting.description) + " (default " + std::string(setting.fallback) + ")\n";
  }

  text +=
      "  quotas of users and jobs are [[jobs.quota]] tables of the file; `memserver config "
      "--defaults` shows one\n";

  for (const CommandEntry& entry : kCommands) {
    std::string flags;
    for (const CommandFlag& flag : kCommandFlags) {
      const std::string shown =
          std::string(flag.name) + (flag.kind.empty() ? "" : " ") + std::string(flag.kind);
      if (flag.command == entry.command)
        flags += "  " + Padded(shown, 26) + std::string(flag.description) + "\n";
    }
    if (!flags.empty()) text += "\nof `" + std::string(entry.name) + "` alone:\n" + flags;
  }
  return text;
}

std::string CompletionText(const std::string& shell) {
  const auto flag_of = [](std::string_view name, std::string_view kind,
                          std::string_view description) {
    return CompletedFlag{
        {std::string(name)}, std::string(description), !kind.empty(), ValuesOfKind(kind)};
  };
  CompletedCommand whole{.path = "", .help = "", .flags = {}};
  whole.flags = {flag_of("--help", "", "print commands and settings"),
                 flag_of("--config", "FILE", "settings from this file")};
  for (const Setting& setting : Settings())
    whole.flags.push_back(flag_of(setting.flag, setting.value_kind, setting.description));

  std::vector<CompletedCommand> commands{whole};
  for (const CommandEntry& entry : kCommands) {
    CompletedCommand command{
        .path = std::string(entry.name), .help = std::string(entry.description), .flags = {}};
    for (const CommandFlag& flag : kCommandFlags) {
      if (flag.command == entry.command)
        command.flags.push_back(flag_of(flag.name, flag.kind, flag.description));
    }
    if (entry.command == Command::kBench) command.arguments.words = {"copy", "nvme"};
    if (entry.command == Command::kCompletion) command.arguments.words = kCompletionShells;
    commands.push_back(command);
  }

  return CompletionFor(shell, "memserver", commands);
}

}  // namespace tidepool::memserver
