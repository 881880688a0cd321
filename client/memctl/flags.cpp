#include "client/memctl/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "base/completion.h"
#include "base/suggest.h"
#include "base/units.h"
#include "client/memctl/help_text.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

struct CommandFlags {
  const char* name;
  const char* help;
  bool job, chunk_filters, api;
};
constexpr auto kCommands = std::to_array<CommandFlags>({
    {"status", "One screen: state, pool, rCache, jobs, bytes moved", false, false, false},
    {"ps", "The jobs: ranks, steps, memory, time a step", true, false, false},
    {"residency", "Picture: chunks x places, coloured by state", true, false, false},
    {"chunks", "A table of chunks: state, version, who has fetched them", true, true, false},
    {"topo", "The machine: NUMA nodes, GPUs and drives, and where pool and workers are", false, false, false},
    {"quotas", "What each user or job may have of the pool and has, and the jobs that wait for room", false, false, false},
    {"doctor", "What is wrong and what to do: the way to memserver, and its checks; exit code 9 when something does not work", false, false,
     false},
    {"drain", "Take no new jobs; those that are there go on", false, false, false},
    {"undrain", "Take new jobs again", false, false, false},
    {"version", "Release of memctl and of the memserver that answers", false, false, false},
    {"wait-ready", "Wait until memserver serves; exit code 6 when it does not in time", false, false, false},
    {"api", "Send one request and print the answer as it is", false, false, true},
});

// Texts of flags that need a second look after CLI11.
struct Texts {
  std::string timeout, watch, output = "table";
  bool no_header = false, no_color = false;
};

void AddGlobalFlags(CLI::App* app, Invocation* invocation, Texts* texts) {
  app->add_option("-s,--socket-dir", invocation->socket_dir, "Directory of memserver's sockets (env TIDEPOOL_SOCKET_DIR)")
      ->type_name("DIR");
  app->add_option("-o,--output", texts->output, "table or json; of residency also svg or html")
      ->check(CLI::IsMember({"table", "json", "svg", "html"}))
      ->type_name("FORM");
  app->add_option("--timeout", texts->timeout, "Longest wait for an answer (5s; wait-ready: 30s)")->type_name("TIME");
  app->add_option("--watch", texts->watch, "Show again every TIME (1s)")->expected(0, 1)->type_name("TIME");
  app->add_flag("--no-header", texts->no_header, "Leave column titles and legends out");
  app->add_flag("--no-color", texts->no_color, "Never use colours (env NO_COLOR)");
}

// What a column of the picture is.
void AddBy(CLI::App* sub, Invocation* invocation) {
  sub->add_option("--by", invocation->by, "A column, or a line, for each of these (chunk)")
      ->check(CLI::IsMember({"chunk", "layer", "tensor", "job"}))
      ->type_name("chunk|layer|tensor|job");
}

void AddCommand(CLI::App* app, const CommandFlags& command, Invocation* invocation) {
  CLI::App* sub = app->add_subcommand(command.name, command.help);
  sub->fallthrough();
  sub->callback([invocation, name = command.name] { invocation->command = name; });
  if (command.job) sub->add_option("--job", invocation->job, "Only this job, by name or number")->type_name("JOB");
  if (std::string_view(command.name) == "residency") {
    CLI::Option* from = sub->add_option("--from", invocation->from, "What `memctl record` has seen, instead of now")->type_name("FILE");
    sub->add_option("--at", invocation->at_seconds, "So many seconds behind its first look (0)")
        ->type_name("SECONDS")
        ->check(CLI::NonNegativeNumber)
        ->needs(from);
    AddBy(sub, invocation);
  }
  if (command.chunk_filters) {
    sub->add_option("--state", invocation->state, "Only chunks in this state")
        ->type_name("empty|resident|gradients|complete|update-due|updating|frozen");
    sub->add_option("--tier", invocation->tier, "Only chunks that some rank holds, or whose states lie on the host or on NVMe")
        ->check(CLI::IsMember({"rcache", "host", "nvme"}))
        ->type_name("rcache|host|nvme");
    sub->add_option("--limit", invocation->limit, "Rows of one page, up to 10000")->type_name("N")->check(CLI::Range(1, 10'000));
    sub->add_option("--cursor", invocation->cursor, "Go on where the page before ended")->type_name("CURSOR");
  }
  if (command.api) {
    sub->add_option("method", invocation->method, "GET")->required();
    sub->add_option("path", invocation->target, "As in docs/admin_api.md")->required();
  }
}

struct FieldFlag {
  const char* flag;  // "--limit" of the field "limit"
  const char* kind;
  const char* help;
};
struct ActionFlags {
  const char* name;
  const char* help;
  std::array<FieldFlag, 5> fields;
  size_t field_count;
};
constexpr auto kJobActions = std::to_array<ActionFlags>({
    {"quota",
     "Change what a job may have; until it ends, or memserver does",
     {{{"--guarantee", "SIZE|%", "Pool memory that nobody else is given"},
       {"--limit", "SIZE|%|none", "Pool memory that it never exceeds"},
       {"--nvme-limit", "SIZE|none", "Bytes on NVMe that it never exceeds"},
       {"--weight", "N", "Its share of workers and copies, against jobs of the same priority (1 to 100)"},
       {"--priority", "low|normal|high", "Who comes first"}}},
     5},
    {"suspend", "Serve it no longer: its ranks wait, and its memory is kept, until it is resumed", {}, 0},
    {"resume", "Serve it again", {}, 0},
    {"release", "Give back all that it holds; its states are lost", {}, 0},
});

// memctl job ACTION JOB [flags]
void AddJobCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* job = app->add_subcommand("job", "Change a job: memctl job ACTION JOB");
  job->require_subcommand(1)->fallthrough();
  for (const ActionFlags& action : kJobActions) {
    CLI::App* sub = job->add_subcommand(action.name, action.help);
    sub->fallthrough();
    sub->callback([invocation, name = action.name] {
      invocation->command = "job";
      invocation->action = name;
    });
    sub->add_option("job", invocation->job, "Its name or number")->required()->type_name("JOB");
    if (std::string_view(action.name) == "release") sub->add_flag("--force", invocation->force, "Also while it has ranks: they are ended");
    for (size_t i = 0; i < action.field_count; ++i) {
      std::string field = action.fields[i].flag + 2;
      std::replace(field.begin(), field.end(), '-', '_');
      const auto take = [invocation, field](const std::string& text) { invocation->fields[field] = text; };
      sub->add_option_function<std::string>(action.fields[i].flag, take, action.fields[i].help)->type_name(action.fields[i].kind);
    }
  }
}

// memctl logs level LEVEL [--for TIME]
void AddLogsCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* logs = app->add_subcommand("logs", "Change what memserver logs: memctl logs level LEVEL");
  logs->require_subcommand(1)->fallthrough();
  CLI::App* sub = logs->add_subcommand("level", "From which level on");
  sub->fallthrough();
  sub->callback([invocation] { invocation->command = "logs"; });
  const auto field = [invocation](const char* name) {
    return [invocation, name](const std::string& text) { invocation->fields[name] = text; };
  };
  sub->add_option_function<std::string>("level", field("level"))->required()->type_name("debug|info|warn|error");
  sub->add_option_function<std::string>("--for", field("for"), "Then the configured level comes back")->type_name("TIME");
}

// A word of the command line, and what it does.
struct Word {
  const char* name;
  const char* help;
};
constexpr auto kRunWords = std::to_array<Word>({
    {"record", "Look for a while, and keep what was seen: memctl record run.rec"},
    {"report", "Look for a while, and write what was seen as one HTML page: memctl report run.html"},
    {"timeline", "Look for a while, and write steps, phases and rates as trace events for ui.perfetto.dev: memctl timeline run.json"},
});

// memctl record|report|timeline FILE [--for TIME] [--from FILE]
template <typename Add>
void AddRunCommands(Add add, Invocation* invocation) {
  const auto take_for = [invocation](const std::string& text) { invocation->fields["for"] = text; };
  for (const Word& word : kRunWords) {
    CLI::App* sub = add(word.name, word.help);
    sub->add_option("file", invocation->target, "What is written")->required()->type_name("FILE");
    CLI::Option* length = sub->add_option_function<std::string>("--for", take_for, "How long (10s), every --watch (250ms; timeline 50ms)");
    length->type_name("TIME");
    if (std::string_view(word.name) == "record") {
      AddBy(sub, invocation);
      continue;
    }
    sub->add_option("--from", invocation->from, "What `memctl record` has seen, instead of looking")->type_name("FILE")->excludes(length);
    if (std::string_view(word.name) != "report") continue;
    sub->add_option("--metrics", invocation->metrics, "metrics.jsonl of the trainer: hit rate and its bound, late prefetches")
        ->type_name("FILE");
  }
}

// memctl top [-b] [-n N], memctl events [-f] [--after N] [--limit N], memctl explain CODE
void AddLookCommands(CLI::App* app, Invocation* invocation) {
  const auto add = [&](const char* name, const char* help) {
    CLI::App* sub = app->add_subcommand(name, help);
    sub->fallthrough();
    sub->callback([invocation, name] { invocation->command = name; });
    return sub;
  };
  CLI::App* top = add("top", "Rates of copies, updates and jobs, again every --watch (1s)");
  top->add_flag("-b,--batch", invocation->batch, "One behind the other instead of in place");
  top->add_option("-n,--rounds", invocation->rounds, "So many times; else until Ctrl-C")->type_name("N")->check(CLI::PositiveNumber);
  CLI::App* health = add("health", "memserver's own checks; exit code 0 all is well, 1 warnings, 2 errors");
  const auto take = [invocation](const char* field) {
    return [invocation, field](const std::string& text) { invocation->fields[field] = text; };
  };
  CLI::Option* mute =
      health->add_option_function<std::string>("--mute", take("check"), "For --for, this check counts for nothing in the whole");
  mute->type_name("CHECK");
  health->add_option_function<std::string>("--for", take("for"), "How long (1h); 30 days at most")->type_name("TIME")->needs(mute);
  health->add_option_function<std::string>("--unmute", take("unmute"), "It counts again")->type_name("CHECK")->excludes(mute);
  CLI::App* events = add("events", "What memserver has logged; -o json: an object a line");
  events->add_flag_callback(
      "-f,--follow", [invocation] { invocation->watch_ns = kNsPerSecond / 2; }, "Go on with what comes");
  events->add_option("--after", invocation->cursor, "Only what is behind this number")->type_name("N")->check(CLI::NonNegativeNumber);
  events->add_option("--limit", invocation->limit, "At most so many")->type_name("N")->check(CLI::Range(1, 1024));
  AddRunCommands(add, invocation);
  CLI::App* page = add("page", "Show what memserver does in a browser, until Ctrl-C; with the rights of whoever runs it");
  page->add_option("--listen", invocation->listen, "Where: an address of the loopback; port 0: any that is free (127.0.0.1:8642)")
      ->type_name("ADDRESS");
  add("explain", "What an error means and what to do: memctl explain TP2101")
      ->add_option("code", invocation->target, "A number or a name")
      ->required()
      ->type_name("CODE");
}

constexpr auto kTensorWords = std::to_array<Word>({
    {"tensors", "Where parameters lie: memctl tensors h.3.attn"},
    {"chunk", "The parameters of one chunk: memctl chunk 7 --job gpt"},
});
constexpr auto kNvmeWords = std::to_array<Word>({
    {"status", "Space, bytes moved and state of each directory, and how far the last scrub is"},
    {"scrub", "Check every piece of states while training goes on; returns at once"},
});
constexpr auto kConfigWords = std::to_array<Word>({
    {"show", "Every setting that holds, and where it came from"},
    {"diff", "Those that are not the default"},
    {"reload", "Read the configuration again; nothing is applied when it changes what needs a restart"},
});

// memctl nvme status|scrub, memctl config show|diff|reload
void AddWordCommand(CLI::App* app, const Word& command, std::span<const Word> words, Invocation* invocation) {
  CLI::App* whole = app->add_subcommand(command.name, command.help);
  whole->require_subcommand(1)->fallthrough();
  for (const Word& word : words) {
    CLI::App* sub = whole->add_subcommand(word.name, word.help);
    sub->fallthrough();
    sub->callback([invocation, command = command.name, action = word.name] {
      invocation->command = command;
      invocation->action = action;
    });
  }
}

// memctl tensors [NAME] [--job JOB] [--limit N] [--cursor CURSOR], memctl chunk ID [--job JOB]
void AddTensorCommands(CLI::App* app, Invocation* invocation) {
  for (const Word& word : kTensorWords) {
    CLI::App* sub = app->add_subcommand(word.name, word.help);
    sub->fallthrough();
    sub->callback([invocation, name = word.name] { invocation->command = name; });
    sub->add_option("--job", invocation->job, "Only this job, by name or number")->type_name("JOB");
    if (std::string_view(word.name) == "chunk") {
      sub->add_option("id", invocation->chunk, "Its number")->required()->type_name("N")->check(CLI::NonNegativeNumber);
      continue;
    }
    sub->add_option("name", invocation->name, "A part of the names")->type_name("NAME");
    sub->add_option("--limit", invocation->limit, "Rows of one page, up to 10000")->type_name("N")->check(CLI::Range(1, 10'000));
    sub->add_option("--cursor", invocation->cursor, "Go on where the page before ended")->type_name("CURSOR");
  }
}

// memctl completion SHELL
void AddCompletionCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* sub =
      app->add_subcommand("completion", "Print what a shell completes memctl's command line with: source <(memctl completion bash)");
  sub->callback([invocation] { invocation->command = "completion"; });
  sub->add_option("shell", invocation->target)->required()->check(CLI::IsMember({"bash", "zsh"}));
}

// Names of jobs are asked for when they are needed.
void CompleteJobs(CompletedValues* values, const std::string& kind) {
  if (kind == "JOB") values->lines_of = "memctl ps --no-header --no-color 2> /dev/null | awk '{print $2}'";
}

ParsedLine Completion(const CLI::App& app, const std::string& shell) {
  std::vector<CompletedCommand> commands;
  AppendCommands(app, "", CompleteJobs, &commands);
  const std::string text = shell == "bash" ? BashCompletion("memctl", commands) : ZshCompletion("memctl", commands);
  return {.invocation = std::nullopt, .text = text, .exit_code = kExitOk};
}

ParsedLine UsageError(const std::string& what) {
  return {.invocation = std::nullopt, .text = Status(ErrorId::kUsageError, what).Format() + "\n", .exit_code = kExitUsage};
}

// The first word that belongs to no command and no flag, with a guess at what was meant.
std::string WhyNotUnderstood(const std::vector<std::string>& words) {
  std::vector<std::string_view> names;
  for (const CommandFlags& command : kCommands) names.emplace_back(command.name);
  for (const char* name : {"job", "tensors", "chunk", "nvme", "config", "logs", "health", "top", "events", "record", "report", "timeline",
                           "page", "explain", "completion"})
    names.emplace_back(name);
  for (const std::string& word : words) {
    if (word.starts_with("-")) return "there is no flag " + word + " here";
    return "there is no command '" + word + "'" + DidYouMean(word, names);
  }
  return "no command is given";
}

Status ReadDurations(const Texts& texts, bool watch, Invocation* invocation) {
  invocation->timeout_ns = invocation->command == "wait-ready" ? kWaitReadyDefaultNs : kTimeoutDefaultNs;
  if (!texts.timeout.empty()) {
    TP_ASSIGN_OR_RETURN(invocation->timeout_ns, ParseDurationNs(texts.timeout));
  }
  const auto is_command = [invocation](const Word& word) { return invocation->command == word.name; };
  if (std::any_of(kRunWords.begin(), kRunWords.end(), is_command) && invocation->fields.contains("for")) {
    TP_ASSIGN_OR_RETURN(invocation->for_ns, ParseDurationNs(invocation->fields["for"]));
  }
  if (!watch && invocation->command != "top") return {};
  invocation->watch_ns = kNsPerSecond;
  if (!texts.watch.empty()) {
    TP_ASSIGN_OR_RETURN(invocation->watch_ns.emplace(), ParseDurationNs(texts.watch));
  }
  // Faster than the server renews its snapshot would show the same picture again.
  invocation->watch_ns = std::max<int64_t>(*invocation->watch_ns, 50 * kNsPerMs);
  return {};
}

}  // namespace

ParsedLine ParseCommandLine(int argc, const char* const* argv) {
  Invocation invocation;
  Texts texts;
  CLI::App app(kHelpText, "memctl");
  app.set_version_flag("--version", "memctl " TIDEPOOL_VERSION);
  app.allow_extras();
  AddGlobalFlags(&app, &invocation, &texts);
  for (const CommandFlags& command : kCommands) AddCommand(&app, command, &invocation);
  AddJobCommand(&app, &invocation);
  AddLogsCommand(&app, &invocation);
  AddLookCommands(&app, &invocation);
  AddTensorCommands(&app, &invocation);
  AddWordCommand(&app, {"nvme", "States on NVMe: their directories, and checking them"}, kNvmeWords, &invocation);
  AddWordCommand(&app, {"config", "memserver's settings: where they came from, and reading them again"}, kConfigWords, &invocation);
  AddCompletionCommand(&app, &invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    CLI::App* shown = &app;
    for (CLI::App* sub : app.get_subcommands()) shown = sub;
    return {.invocation = std::nullopt, .text = shown->help(), .exit_code = kExitOk};
  } catch (const CLI::CallForVersion&) {
    return {.invocation = std::nullopt, .text = "memctl " TIDEPOOL_VERSION "\n", .exit_code = kExitOk};
  } catch (const CLI::ParseError& error) {
    return UsageError(error.what());
  }
  if (const auto extras = app.remaining(true); !extras.empty() || invocation.command.empty()) return UsageError(WhyNotUnderstood(extras));
  if (invocation.command == "completion") return Completion(app, invocation.target);
  const Status durations = ReadDurations(texts, app.count("--watch") > 0, &invocation);
  if (!durations.ok()) return {.invocation = std::nullopt, .text = durations.Format() + "\n", .exit_code = durations.exit_code()};
  invocation.form = texts.output;
  invocation.json = texts.output == "json";
  if (texts.output != "table" && !invocation.json && invocation.command != "residency") {
    return UsageError("only residency is shown as " + texts.output);
  }
  invocation.header = !texts.no_header;
  invocation.color = !texts.no_color;
  if (invocation.socket_dir.empty()) invocation.socket_dir = shm::DefaultClientDir();
  return {.invocation = invocation, .text = "", .exit_code = kExitOk};
}

}  // namespace tidepool::client
