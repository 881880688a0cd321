// Completion: scripts with which a shell completes a program's command line, made from the same
// tables as its --help.
//
// Any thread; value types.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

// The allowed values at one place of the command line. All empty: any text.
struct CompletedValues {
  std::vector<std::string> words = {};
  bool files = false;
  bool directories = false;
  std::string lines_of = {};  // a shell command whose output lines are the values
};

// A flag of a command, and its values.
struct CompletedFlag {
  std::vector<std::string> names;  // "-o", "--output"
  std::string help;
  bool takes_value = false;
  CompletedValues values = {};
};

// A command with its flags and arguments.
struct CompletedCommand {
  std::string
      path;  // "" (the program: its flags are allowed behind every command), "status", "job quota"
  std::string help;
  std::vector<CompletedFlag> flags;
  bool takes_arguments = false;    // words that are not flags
  CompletedValues arguments = {};  // values of the first one
};

// Derives values from a kind as --help shows it: "DIR", "FILE", "FORM:{table,json}",
// "auto|off|SIZE" (words are lower-case letters and digits).
CompletedValues ValuesOfKind(std::string_view kind);

// The shells that have a completion.
inline const std::vector<std::string> kCompletionShells{"bash", "zsh", "fish"};

// The script for `source`, or for a file in the completions folder. Commands are in display order,
// each behind its parent. `shell` is one of kCompletionShells.
std::string CompletionFor(const std::string& shell, const std::string& program,
                          const std::vector<CompletedCommand>& commands);
std::string BashCompletion(const std::string& program,
                           const std::vector<CompletedCommand>& commands);
std::string ZshCompletion(const std::string& program,
                          const std::vector<CompletedCommand>& commands);
std::string FishCompletion(const std::string& program,
                           const std::vector<CompletedCommand>& commands);

// Appends what CLI11 knows about `app` and all commands below it; `more(&values, kind)` adds to
// what a kind implies. (A template, so that base needs no CLI11.)
template <typename App, typename More>
void AppendCommands(const App& app, const std::string& path, More more,
                    std::vector<CompletedCommand>* commands) {
  const auto values_of = [&more](const auto& option) {
    CompletedValues values = ValuesOfKind(option.get_type_name());
    more(&values, option.get_type_name());
    return values;
  };

  CompletedCommand command{.path = path, .help = app.get_description(), .flags = {}};
  for (const auto* option : app.get_options()) {
    if (option->get_positional()) {
      if (!command.takes_arguments) command.arguments = values_of(*option);
      command.takes_arguments = true;
      continue;
    }

    CompletedFlag flag{.names = {},
                       .help = option->get_description(),
                       .takes_value = option->get_items_expected_max() > 0};
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    if (flag.takes_value) flag.values = values_of(*option);
    command.flags.push_back(flag);
  }

  commands->push_back(command);
  for (const App* below : app.get_subcommands([](const App*) { return true; })) {
    AppendCommands(*below, path.empty() ? below->get_name() : path + " " + below->get_name(), more,
                   commands);
  }
}

}  // namespace tidepool
