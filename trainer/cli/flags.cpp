#include "trainer/cli/flags.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/text/completion.h"
#include "base/error_catalog.h"
#include "base/status.h"
#include "base/text/error_text.h"
#include "base/text/flag_error.h"
#include "base/text/suggest.h"
#include "trainer/cli/flag_effects.h"
#include "trainer/cli/flags_file.h"
#include "trainer/cli/number_flags.h"
#include "trainer/cli/run_flags.h"
#include "trainer/cli/tool_flags.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kExamples = R"(examples:
  trainer run --standalone --steps 100                     train the quickstart model with a private memory server
  trainer launch -n 2 -- run --socket-dir /run/tidepool    two ranks on a memserver that is already running
  trainer run --job nightly --resume auto                  start the job, or continue it where it was interrupted
  torchrun --standalone --nproc-per-node 2 --no-python trainer run --preset quickstart
  trainer run --standalone --accumulate 4 --pipeline 3     weights come twice a step, not twice a micro-batch
  trainer run --base OUT --lora-rank 8 --job r8 --save R8  train adapters over saved weights, which all such jobs share
  trainer estimate --preset gpt2-10b --ranks 4             memory by tier; no weights are made
  trainer estimate --preset gpt2-4b --dtype bf16 --checkpoint-activations --rcache auto --device-memory 24GiB
                                                           the rCache that such a device has room for, and why
  trainer run --from DIR --data train.bin --save OUT       train saved weights on: yours, or a Hugging Face GPT-2 or Llama
  trainer tokenize --tokenizer DIR TEXT train.bin          text to ids once, for several runs
  trainer export OUT HF --dtype bf16                       for transformers, and whatever reads its files
  trainer estimate --preset opt-13b --dtype bf16 --batch 1 --ranks 4 --pipeline auto --accumulate 4 --timeline step.svg
                                                           a pipeline over four GPUs, and a picture of its step
  trainer sample OUT "Permission is hereby granted"        generate text from saved weights
)";

// Attaches its range to every numeric flag.
void CheckNumbers(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    const NumberFlag* flag = FindNumberFlag(app->get_name(), option->get_name());
    if (flag == nullptr) continue;
    option->transform(CLI::Validator(
        [flag](std::string& text) { return CheckNumber(*flag, &text); }, std::string()));
  }
}

// The subcommands; `app` owns them.
struct Commands {
  CLI::App *run = nullptr, *estimate = nullptr, *sample = nullptr, *launch = nullptr,
           *doctor = nullptr, *rates = nullptr, *exported = nullptr, *tokenize = nullptr,
           *completion = nullptr;

  Command Chosen() const {
    return run->parsed()        ? Command::kRun
           : doctor->parsed()   ? Command::kDoctor
           : rates->parsed()    ? Command::kRates
           : estimate->parsed() ? Command::kEstimate
           : sample->parsed()   ? Command::kSample
           : exported->parsed() ? Command::kExport
           : tokenize->parsed() ? Command::kTokenize
           : launch->parsed()   ? Command::kLaunch
                                : Command::kVersion;
  }
};

// The names and the order in which --help shows them.
Commands NameCommands(CLI::App* app) {
  Commands commands;
  commands.run = app->add_subcommand("run", "train; one process a rank");
  commands.estimate =
      app->add_subcommand("estimate", "memory by tier for a model; nothing is started");
  commands.sample = app->add_subcommand("sample", "generate text from saved weights");
  commands.exported = app->add_subcommand(
      "export", "write saved weights as a Hugging Face directory; adapters are merged");
  commands.tokenize = app->add_subcommand(
      "tokenize", "write the token ids of a text, for several runs over it: --data FILE.bin");
  commands.launch =
      app->add_subcommand("launch", "start N ranks on this machine: launch -n 2 -- run ...");

  commands.doctor = app->add_subcommand(
      "doctor", "what this machine has for --device (default here: auto), and why not more");
  commands.rates = app->add_subcommand(
      "rates", "how fast this machine copies and updates, as memserver has measured it");
  app->add_subcommand("version", "versions of trainer, protocol and LibTorch");
  commands.completion = app->add_subcommand(
      "completion",
      "print what a shell completes this command line with: source <(trainer completion bash)");
  return commands;
}

void AddLaunchFlags(CLI::App* launch, CommandLine* line) {
  launch->add_option("-n,--ranks", line->launch_ranks, "ranks to start")->required();
  launch
      ->add_option("--max-restarts", line->launch_restarts,
                   "with --resume auto in the command: how often a rank that died is started again")
      ->capture_default_str();
  launch->add_option("command", line->launch_arguments, "after `--`: run and its flags")
      ->required();
  launch->footer(kExamples);
}

// --config is already handled by WithFlagsOfFile.
void AddConfigFlags(CLI::App* run) {
  run->add_option(kConfigFlag,
                  "TOML file of flags without their dashes, such as steps = 500; what "
                  "is given here wins")
      ->type_name("FILE")
      ->group("output");
  run->add_flag_callback(
         "--print-config", [] {}, "print all settings as such a file, and train nothing")
      ->group("output");
}

// Whether a given flag excludes this one, so that writing its default would conflict.
bool IsExcluded(const CLI::App& run, const CLI::Option& option) {
  const auto& others = option.get_excludes();
  // With --plan, an explicit --rcache is a limit.
  const bool is_limit = option.check_lname("rcache") && run.count("--plan") > 0;
  return option.count() == 0 &&
         (is_limit || std::any_of(others.begin(), others.end(),
                                  [](const CLI::Option* other) { return other->count() > 0; }));
}

bool IsSwitch(const CLI::Option& option) {
  return option.get_expected_min() == 0 && option.get_items_expected_max() == 0;
}

// The flags of `command`, which has been parsed and outlives the result.
GivenFlags FlagsOf(const CLI::App& command) {
  const auto find = [&command](std::string_view name) {
    return command.get_option_no_throw(std::string(name));
  };

  GivenFlags flags;
  flags.given = [find](std::string_view name) {
    const CLI::Option* option = find(name);
    return option != nullptr && option->count() > 0;
  };

  flags.value = [find](std::string_view name) -> std::optional<std::string> {
    const CLI::Option* option = find(name);
    if (option == nullptr) return std::nullopt;
    if (IsSwitch(*option)) return option->count() > 0 ? "true" : "false";
    return option->count() > 0 ? option->results().front() : option->get_default_str();
  };
  return flags;
}

// The effective value of each flag that a config file may hold.
std::string ConfigOf(const CLI::App& run) {
  std::vector<ShownFlag> flags;
  const GivenFlags read = FlagsOf(run);
  for (const CLI::Option* option : run.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
    if (name.empty() || name == "help" || name == "config" || name == "print-config") continue;

    ShownFlag flag{.group = option->get_group(),
                   .name = name,
                   .description = option->get_description(),
                   .value = option->get_default_str(),
                   .is_text = true};

    const bool is_switch = IsSwitch(*option);
    if (is_switch) flag.value = option->count() > 0 ? "true" : "false";
    if (!is_switch && option->count() > 0) flag.value = option->results().front();

    const bool refused =
        WhyNoEffect(read, "--" + name) != nullptr || Contradicts(read, "--" + name);
    if (IsExcluded(run, *option) || (option->count() == 0 && refused)) flag.value.clear();
    flag.is_text = !is_switch && FindNumberFlag("run", option->get_name()) == nullptr;
    flags.push_back(std::move(flag));
  }

  std::stable_sort(flags.begin(), flags.end(),
                   [](const ShownFlag& a, const ShownFlag& b) { return a.group < b.group; });
  return ConfigText(flags);
}

// Adds all subcommands with their flags, which write into `line` and `shell`.
Commands AddCommands(CLI::App* app, CommandLine* line, std::string* shell) {
  const Commands commands = NameCommands(app);
  commands.completion->add_option("shell", *shell)
      ->required()
      ->check(CLI::IsMember(kCompletionShells));

  RunOptions* o = &line->options;
  for (CLI::App* command : {commands.run, commands.estimate}) {
    AddModelFlags(command, &o->model);
    AddAdapterFlags(command, &o->adapters);
    AddMemoryFlags(command, &o->memory, &o->training);
    AddDataFlags(command, &o->data);
    AddOptimizerFlags(command, &o->optimizer);
    AddDeviceFlag(command, &o->device);
  }

  AddTrainingFlags(commands.run, &o->training, &o->optimizer);
  AddPlaceFlags(commands.run, o);
  AddCheckpointFlags(commands.run, &o->checkpoint);
  AddOutputFlags(commands.run, &o->output);
  AddStageFlags(commands.run, &o->pipeline);
  AddConfigFlags(commands.run);
  commands.run->footer(kExamples);

  commands.estimate->add_option("--ranks", o->ranks, "for so many ranks")->capture_default_str();
  AddPipelineFlags(commands.estimate, o);

  commands.estimate
      ->add_option("--svg", o->output.svg_file,
                   "a picture of the rCache over a step: which chunks are there, come and go when")
      ->group("output")
      ->type_name("FILE.svg")
      ->excludes("--pipeline");

  for (CLI::App* command : {commands.run, commands.estimate})
    command->add_flag("--json", o->output.json, "the plan as JSON on stdout")->group("output");
  AddDeviceFlag(commands.doctor, &o->device);
  commands.doctor->get_option("--device")->default_str("auto");
  AddRatesFlags(commands.rates, o);
  AddSampleFlags(commands.sample, o);
  AddExportFlags(commands.exported, &o->exported);
  AddTokenizeFlags(commands.tokenize, &o->tokenize);
  AddLaunchFlags(commands.launch, line);

  for (CLI::App* command : {commands.run, commands.estimate, commands.sample, commands.launch})
    CheckNumbers(command);
  return commands;
}

// Parses the command that `launch` starts, as a rank will parse it.
bool ParseLaunched(CommandLine* line, int* exit_code) {
  if (line->launch_arguments.front() != "run") return true;
  std::vector<std::string> words = line->launch_arguments;
  words.insert(words.begin(), "trainer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CommandLine launched;
  const bool goes_on =
      ParseCommandLine(static_cast<int>(argv.size()), argv.data(), &launched, exit_code);
  line->options = std::move(launched.options);
  return goes_on;
}

// `; did you mean "--steps"?` for the first word that looks like a flag but is unknown to the
// command.
std::string NearestFlag(const CLI::App& app, int argc, char** argv) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty()) return {};

  std::vector<std::string> names;
  for (const CLI::Option* option : chosen.front()->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }

  const std::vector<std::string_view> known(names.begin(), names.end());
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (word.starts_with("--") && std::find(known.begin(), known.end(), word) == known.end())
      return DidYouMean(word, known);
  }
  return {};
}

// Maps CLI11's exit codes: 0 for help and version, 2 for every usage error.
int ExitOf(const CLI::App& app, const CLI::ParseError& error, const std::string& hint) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return kExitOk;
  }
  const FlagError plain = PlainFlagError(error.what());
  const Status status = Status(ErrorId::kUsageError, plain.what + hint)
                            .Where("command line of trainer")
                            .Fix(plain.fix);
  std::cerr << ErrorText(status) << "\n";
  return kExitUsage;
}

constexpr std::array<std::string_view, 10> kCommands{"run",      "estimate",  "sample", "export",
                                                     "tokenize", "launch",    "doctor", "rates",
                                                     "version",  "completion"};

std::string CompletionText(const CLI::App& app, const std::string& shell) {
  std::vector<CompletedCommand> commands;
  AppendCommands(
      app, "", [](CompletedValues*, const std::string&) {}, &commands);
  return CompletionFor(shell, "trainer", commands);
}

bool UnknownCommand(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  return std::find(kCommands.begin(), kCommands.end(), argv[1]) == kCommands.end();
}

// A `launch` whose command does not stand behind `--`: what it would have to be. Words that belong
// to launch itself stay in front.
Status CheckLaunchWords(const std::vector<std::string>& words) {
  const auto end = words.end();
  if (words.size() < 2 || words[1] != "launch" || std::find(words.begin(), end, "--") != end)
    return {};
  for (const char* shown : {"-h", "--help"})
    if (std::find(words.begin(), end, shown) != end) return {};

  const auto is_command = [](const std::string& word) {
    return std::find(kCommands.begin(), kCommands.end(), word) != kCommands.end();
  };
  const auto command = std::find_if(words.begin() + 2, end, is_command);
  std::string fix = "trainer";
  for (auto word = words.begin() + 1; word != command; ++word) fix += " " + *word;
  fix += command == end ? " -- run" : " --";
  for (auto word = command; word != end; ++word) fix += " " + *word;

  return Status(ErrorId::kUsageError, command == end
                                          ? "launch is not told what the ranks run"
                                          : "the command of the ranks stands behind `--`")
      .Where("command line of trainer")
      .Fix(fix);
}

bool ParseWords(int argc, char** argv, CommandLine* line, int* exit_code) {
  CLI::App app("trainer trains models whose states are in a memory server (memserver)");
  app.set_version_flag("--version", "trainer " TIDEPOOL_VERSION);
  app.footer(kExamples);
  app.require_subcommand(1);
  std::string shell;
  const Commands commands = AddCommands(&app, line, &shell);

  if (UnknownCommand(argc, argv)) {
    const Status unknown =
        Status(ErrorId::kUsageError,
               "unknown command \"" + std::string(argv[1]) + "\"" + DidYouMean(argv[1], kCommands))
            .Where("command line of trainer");
    std::cerr << ErrorText(unknown) << "\n";
    *exit_code = kExitUsage;
    return false;
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = ExitOf(app, error, NearestFlag(app, argc, argv));
    return false;
  }

  for (const CLI::App* command : {commands.run, commands.estimate}) {
    if (!command->parsed()) continue;
    const Status status = CheckFlagEffects(FlagsOf(*command));
    if (status.ok()) continue;
    std::cerr << ErrorText(status) << "\n";
    *exit_code = status.exit_code();
    return false;
  }

  if (commands.run->parsed() && commands.run->count("--print-config") > 0) {
    std::cout << ConfigOf(*commands.run);
    *exit_code = kExitOk;
    return false;
  }

  if (commands.completion->parsed()) {
    std::cout << CompletionText(app, shell);
    *exit_code = kExitOk;
    return false;
  }

  if (commands.doctor->parsed() && commands.doctor->count("--device") == 0)
    line->options.device.name = "auto";
  line->command = commands.Chosen();
  return line->command != Command::kLaunch || ParseLaunched(line, exit_code);
}

}  // namespace

bool ParseCommandLine(int argc, char** argv, CommandLine* line, int* exit_code) {
  Result<std::vector<std::string>> words = WithFlagsOfFile({argv, argv + argc});
  if (!words.ok()) {
    std::cerr << ErrorText(words.status()) << "\n";
    *exit_code = words.status().exit_code();
    return false;
  }

  if (const Status launch = CheckLaunchWords(words.value()); !launch.ok()) {
    std::cerr << ErrorText(launch) << "\n";
    *exit_code = launch.exit_code();
    return false;
  }

  std::vector<char*> pointers;
  for (std::string& word : words.value()) pointers.push_back(word.data());
  return ParseWords(static_cast<int>(pointers.size()), pointers.data(), line, exit_code);
}

}  // namespace tidepool::trainer
