#include "client/memctl/flags/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/text/completion.h"
#include "base/units.h"
#include "client/memctl/flags/change_flags.h"
#include "client/memctl/flags/help_text.h"
#include "client/memctl/flags/look_flags.h"
#include "client/memctl/commands/nodes.h"
#include "client/memctl/views/usage.h"
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
    {"topo", "The machine: NUMA nodes, GPUs and drives, and where pool and workers are", false,
     false, false},
    {"quotas",
     "What each user or job may have of the pool and has, and the jobs that wait for room", false,
     false, false},
    {"doctor",
     "What is wrong and what to do: the way to memserver, and its checks; exit code 9 when "
     "something does not work",
     false, false, false},
    {"undrain", "Take new jobs again", false, false, false},
    {"shutdown", "End memserver; its keeper holds the jobs for the next one", false, false, false},
    {"version", "Release of memctl and of the memserver that answers", false, false, false},
    {"wait-ready", "Wait until memserver serves; exit code 6 when it does not in time", false,
     false, false},
    {"ready", "For probes: exit code 0 when new jobs are taken", false, false, false},
    {"live", "For probes: exit code 0 when memserver's loop answers, also while it is drained",
     false, false, false},
    {"api", "Send one request and print the answer as it is", false, false, true},
});

// Texts of flags that are parsed further after CLI11.
struct Texts {
  std::string timeout, watch, output = "table";
  bool no_header = false, no_color = false;
};

void AddGlobalFlags(CLI::App* app, Invocation* invocation, Texts* texts) {
  app->add_option("-s,--socket-dir", invocation->socket_dir,
                  "Directory of memserver's sockets (env TIDEPOOL_SOCKET_DIR)")
      ->type_name("DIR");
  app->add_option(
         "--node", invocation->nodes,
         "Other machines instead, over ssh: a,b or several times; tables have a column NODE")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("HOST");

  app->add_option("-o,--output", texts->output,
                  "For people: table, wide; for programs: json, jsonl, yaml; of residency also svg "
                  "or html; of report, timeline and record the file")
      ->type_name("table|wide|json|jsonl|yaml|svg|html");
  app->add_option("--timeout", texts->timeout, "Longest wait for an answer (5s; wait-ready: 30s)")
      ->type_name("TIME");
  app->add_option("--watch", texts->watch, "Show again every TIME (1s)")
      ->expected(0, 1)
      ->type_name("TIME");
  CLI::Option* quiet = app->add_flag(
      "-q,--quiet", invocation->quiet,
      "Say nothing but results and errors; of changes and probes, the exit code says all");

  app->add_flag("-v,--verbose", invocation->verbose,
                "Tell of each request: what was asked, what came, how long it took")
      ->excludes(quiet);
  app->add_flag("--dry-run", invocation->dry_run,
                "Of a change: say what it would do, with numbers, and do nothing");
  app->add_flag("-y,--yes", invocation->yes,
                "Of a change that cannot be taken back: do not ask (nobody but a person at a "
                "terminal is asked)");
  app->add_flag("--no-header", texts->no_header, "Leave column titles and legends out");
  app->add_flag("--no-color", texts->no_color, "Never use colours (env NO_COLOR)");
}

void AddCommand(CLI::App* app, const CommandFlags& command, Invocation* invocation) {
  CLI::App* sub = app->add_subcommand(command.name, command.help);
  sub->fallthrough();
  sub->callback([invocation, name = command.name] { invocation->command = name; });
  if (command.job)
    sub->add_option("--job", invocation->job, "Only this job, by name or number")->type_name("JOB");

  if (std::string_view(command.name) == "shutdown")
    sub->add_flag("--end-jobs", invocation->force, "And all jobs: their states are lost");
  if (std::string_view(command.name) == "topo") {
    sub->add_option("--xml", invocation->xml,
                    "Another machine instead, as `lstopo --of xml FILE` has written it down")
        ->type_name("FILE");
  }

  if (std::string_view(command.name) == "residency") {
    CLI::Option* from =
        sub->add_option("--from", invocation->from, "What `memctl record` has seen, instead of now")
            ->type_name("FILE");
    sub->add_option("--at", invocation->at_seconds, "So many seconds behind its first look (0)")
        ->type_name("SECONDS")
        ->check(CLI::NonNegativeNumber)
        ->needs(from);
    AddBy(sub, invocation);
  }

  if (command.chunk_filters) {
    sub->add_option("--state", invocation->state, "Only chunks in this state")
        ->type_name("empty|resident|gradients|complete|update-due|updating|frozen");
    sub->add_option("--tier", invocation->tier,
                    "Only chunks that some rank holds, or whose states lie on the host or on NVMe")
        ->check(CLI::IsMember({"rcache", "host", "nvme", "gpu"}))
        ->type_name("rcache|host|nvme");

    sub->add_option("--limit", invocation->limit, "Rows of one page, up to 10000")
        ->type_name("N")
        ->check(CLI::Range(1, 10'000));
    sub->add_option("--cursor", invocation->cursor, "Go on where the page before ended")
        ->type_name("CURSOR");
  }
  if (command.api) {
    sub->add_option("method", invocation->method, "GET")->required();
    sub->add_option("path", invocation->target, "As in docs/admin_api.md")->required();
  }
}

constexpr auto kForms =
    std::to_array<std::string_view>({"table", "wide", "json", "jsonl", "yaml", "svg", "html"});
constexpr auto kTensorWords = std::to_array<Word>({
    {"tensors", "Where parameters lie: memctl tensors h.3.attn"},
    {"chunk", "The parameters of one chunk: memctl chunk 7 --job gpt"},
});
// memctl tensors [NAME] [--job JOB] [--limit N] [--cursor CURSOR], memctl chunk ID [--job JOB]
void AddTensorCommands(CLI::App* app, Invocation* invocation) {
  for (const Word& word : kTensorWords) {
    CLI::App* sub = app->add_subcommand(word.name, word.help);
    sub->fallthrough();
    sub->callback([invocation, name = word.name] { invocation->command = name; });
    sub->add_option("--job", invocation->job, "Only this job, by name or number")->type_name("JOB");
    if (std::string_view(word.name) == "chunk") {
      sub->add_option("id", invocation->chunk, "Its number")
          ->required()
          ->type_name("N")
          ->check(CLI::NonNegativeNumber);

      continue;
    }
    sub->add_option("name", invocation->name, "A part of the names")->type_name("NAME");
    sub->add_option("--limit", invocation->limit, "Rows of one page, up to 10000")
        ->type_name("N")
        ->check(CLI::Range(1, 10'000));
    sub->add_option("--cursor", invocation->cursor, "Go on where the page before ended")
        ->type_name("CURSOR");
  }
}

// memctl completion SHELL
void AddCompletionCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* sub = app->add_subcommand(
      "completion",
      "Print what a shell completes memctl's command line with: source <(memctl completion bash)");
  sub->callback([invocation] { invocation->command = "completion"; });
  sub->add_option("shell", invocation->target)->required()->check(CLI::IsMember(kCompletionShells));
}

// Job names are queried when they are needed.
void CompleteJobs(CompletedValues* values, const std::string& kind) {
  if (kind == "JOB")
    values->lines_of = "memctl ps --no-header --no-color 2> /dev/null | awk '{print $2}'";
}

ParsedLine Completion(const CLI::App& app, const std::string& shell) {
  std::vector<CompletedCommand> commands;
  AppendCommands(app, "", CompleteJobs, &commands);
  return {.invocation = std::nullopt,
          .text = CompletionFor(shell, "memctl", commands),
          .exit_code = kExitOk};
}

Status ReadDurations(const Texts& texts, bool watch, Invocation* invocation) {
  invocation->timeout_ns =
      invocation->command == "wait-ready" ? kWaitReadyDefaultNs : kTimeoutDefaultNs;
  if (!texts.timeout.empty()) {
    TP_ASSIGN_OR_RETURN(invocation->timeout_ns, ParseDurationNs(texts.timeout));
  }

  if (LooksForAWhile(invocation->command) && invocation->fields.contains("for")) {
    TP_ASSIGN_OR_RETURN(invocation->for_ns, ParseDurationNs(invocation->fields["for"]));
  }
  if (invocation->fields.contains("wait")) {
    TP_ASSIGN_OR_RETURN(invocation->for_ns, ParseDurationNs(invocation->fields["wait"]));
  }
  if (!watch && invocation->command != "top") return {};
  invocation->watch_ns = kNsPerSecond;
  if (!texts.watch.empty()) {
    TP_ASSIGN_OR_RETURN(invocation->watch_ns.emplace(), ParseDurationNs(texts.watch));
  }
  // A shorter interval than the server's snapshots would show the same picture again.
  invocation->watch_ns = std::max<int64_t>(*invocation->watch_ns, 50 * kNsPerMs);
  return {};
}

// The deepest command that was understood, and its words.
std::pair<CLI::App*, std::string> Named(CLI::App* app) {
  std::string path;
  for (auto below = app->get_subcommands(); !below.empty(); below = app->get_subcommands()) {
    app = below.front();
    path += (path.empty() ? "" : " ") + app->get_name();
  }
  return {app, path};
}

ParsedLine NotUnderstood(CLI::App* app, const std::string& why) {
  const auto [named, path] = Named(app);
  UsageFailure failure{
      .command = path, .commands = {}, .left = app->remaining(true), .flags = {}, .why = why};
  for (const CLI::App* second : app->get_subcommands()) {
    if (second != app->get_subcommands().front()) failure.left.push_back(second->get_name());
  }

  for (const CLI::App* of :
       {static_cast<const CLI::App*>(app), static_cast<const CLI::App*>(named)}) {
    for (const CLI::Option* option : of->get_options()) {
      for (const std::string& flag : option->get_lnames()) failure.flags.push_back("--" + flag);
    }
  }
  for (const CLI::App* below : named->get_subcommands([](const CLI::App*) { return true; }))
    failure.commands.push_back(below->get_name());
  return {.invocation = std::nullopt, .text = UsageText(failure), .exit_code = kExitUsage};
}

// -o: a format; for commands that write a file, the file. Returns the error, or "".
std::string TakeOutput(const std::string& output, Invocation* invocation) {
  const auto is_form = [&](std::string_view form) { return output == form; };
  const bool known = std::any_of(kForms.begin(), kForms.end(), is_form);
  invocation->form = known ? output : "table";
  invocation->json = output == "json" || output == "jsonl" || output == "yaml";
  if (LooksForAWhile(invocation->command)) {
    if (!known && !invocation->target.empty())
      return "the file is named twice: " + invocation->target + " and " + output;
    if (!known) invocation->target = output;
    return invocation->target.empty() ? "the file that is written is not named" : "";
  }
  if (!known) return "-o: '" + output + "' is none of table, wide, json, jsonl, yaml, svg, html";

  const bool is_picture = output == "svg" || output == "html";
  return is_picture && invocation->command != "residency" ? "only residency is shown as " + output
                                                          : "";
}

// "memctl help residency" is "memctl residency --help".
std::vector<const char*> WordsOf(int argc, const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    words.erase(words.begin() + 1);
    words.push_back("--help");
  }
  return words;
}

void AddAll(CLI::App* app, Invocation* invocation, Texts* texts) {
  app->set_version_flag("--version", "memctl " TIDEPOOL_VERSION);
  app->allow_extras();
  AddGlobalFlags(app, invocation, texts);

  for (const CommandFlags& command : kCommands) AddCommand(app, command, invocation);
  AddJobCommand(app, invocation);
  AddLogsCommand(app, invocation);
  AddLookCommands(app, invocation);
  AddTensorCommands(app, invocation);
  AddNvmeAndConfig(app, invocation);
  AddCheckpointCommand(app, invocation);
  AddSnapshotCommand(app, invocation);
  AddCompletionCommand(app, invocation);
}

// A path to a socket means its directory.
std::string SocketDirOf(std::string named) {
  if (named.empty()) named = shm::DefaultClientDir();
  for (const std::string_view socket : {"/admin.sock", "/data.sock"}) {
    if (named.ends_with(socket)) named.erase(named.size() - socket.size());
  }
  return named;
}

// Checks combinations of individually valid flags; returns the error, or "".
std::string WhatIsWrong(const Texts& texts, Invocation* invocation) {
  if (const std::string wrong = TakeOutput(texts.output, invocation); !wrong.empty()) return wrong;
  if (const std::string wrong = WhyNoChange(*invocation); !wrong.empty()) return wrong;
  if (invocation->nodes.empty()) return "";
  const std::string wrong = WhyNotOnNodes(*invocation);
  return wrong.empty() ? "" : "--node: " + wrong;
}

}  // namespace

ParsedLine ParseCommandLine(int argc, const char* const* argv) {
  Invocation invocation;
  Texts texts;
  CLI::App app(kHelpText, "memctl");
  AddAll(&app, &invocation, &texts);

  const std::vector<const char*> words = WordsOf(argc, argv);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::CallForHelp&) {
    return {.invocation = std::nullopt, .text = Named(&app).first->help(), .exit_code = kExitOk};
  } catch (const CLI::CallForVersion&) {
    return {
        .invocation = std::nullopt, .text = "memctl " TIDEPOOL_VERSION "\n", .exit_code = kExitOk};
  } catch (const CLI::ParseError& error) {
    return NotUnderstood(&app, error.what());
  }

  if (!app.remaining(true).empty() || app.get_subcommands().size() != 1)
    return NotUnderstood(&app, "");
  if (invocation.command == "completion") return Completion(app, invocation.target);
  const Status durations = ReadDurations(texts, app.count("--watch") > 0, &invocation);
  if (!durations.ok())
    return {.invocation = std::nullopt,
            .text = durations.Format() + "\n",
            .exit_code = durations.exit_code()};

  if (const std::string wrong = WhatIsWrong(texts, &invocation); !wrong.empty())
    return NotUnderstood(&app, wrong);

  if (!invocation.nodes.empty()) invocation.words = WordsForNodes({argv + 1, argv + argc});
  invocation.header = !texts.no_header;
  invocation.color = !texts.no_color;
  invocation.socket_dir = SocketDirOf(invocation.socket_dir);
  return {.invocation = invocation, .text = "", .exit_code = kExitOk};
}

}  // namespace tidepool::client
