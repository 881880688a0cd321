#include "client/memctl/flags/change_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "client/memctl/commands/changes.h"
#include "client/memctl/flags/look_flags.h"

namespace tidepool::client {
namespace {

struct FieldFlag {
  const char* flag;  // "--limit" for the field "limit"
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
       {"--weight", "N",
        "Its share of workers and copies, against jobs of the same priority (1 to 100)"},
       {"--priority", "low|normal|high", "Who comes first"}}},
     5},
    {"suspend",
     "Serve it no longer: its ranks wait, and its memory is kept, until it is resumed",
     {},
     0},
    {"resume", "Serve it again", {}, 0},
    {"evict",
     "Move its states to NVMe, where they stay until it ends; only while it has no ranks",
     {},
     0},
    {"release", "Give back all that it holds; its states are lost", {}, 0},
});

constexpr auto kNvmeWords = std::to_array<Word>({
    {"status", "Space, bytes moved and state of each directory, and how far the last scrub is"},
    {"scrub", "Check every piece of states while training goes on; returns at once"},
    {"tune",
     "Measure drives, and write down which blocks suit them: memctl nvme tune [DIR ...]; some 15 s "
     "each"},
});
constexpr auto kConfigWords = std::to_array<Word>({
    {"show", "Every setting that holds, and where it came from"},
    {"diff", "Those that are not the default"},
    {"get", "One of them: memctl config get pool.size"},
    {"set",
     "Change one of them in the file, and read it again: memctl config set limits.jobs 8; what "
     "memserver refuses is taken back"},
    {"reload",
     "Read the configuration again; nothing is applied when it changes what needs a restart"},
});

// Adds a command whose actions are words.
void AddWordCommand(CLI::App* app, const Word& command, std::span<const Word> words,
                    Invocation* invocation) {
  CLI::App* whole = app->add_subcommand(command.name, command.help);
  whole->require_subcommand(1)->fallthrough();

  for (const Word& word : words) {
    CLI::App* sub = whole->add_subcommand(word.name, word.help);
    sub->fallthrough();
    sub->callback([invocation, command = command.name, action = word.name] {
      invocation->command = command;
      invocation->action = action;
    });
    if (std::string_view(word.name) == "tune") {
      sub->add_option("directory", invocation->directories,
                      "Where drives are mounted; else those of memserver")
          ->type_name("DIR");
    }

    const std::string_view name = word.name;
    if (name == "get" || name == "set")
      sub->add_option("key", invocation->target)->required()->type_name("KEY");
    if (name == "set") {
      sub->add_option("value", invocation->value)->required()->type_name("VALUE");
      sub->add_option("--file", invocation->file,
                      "The file that memserver reads; needed where memserver is another user's")
          ->type_name("FILE");
    }
  }
}

}  // namespace

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
    if (std::string_view(action.name) == "release")
      sub->add_flag("--force", invocation->force, "Also while it has ranks: they are ended");

    for (size_t i = 0; i < action.field_count; ++i) {
      std::string field = action.fields[i].flag + 2;
      std::replace(field.begin(), field.end(), '-', '_');
      const auto take = [invocation, field](const std::string& text) {
        invocation->fields[field] = text;
      };
      sub->add_option_function<std::string>(action.fields[i].flag, take, action.fields[i].help)
          ->type_name(action.fields[i].kind);
    }
  }
}

void AddLogsCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* logs =
      app->add_subcommand("logs", "Change what memserver logs: memctl logs level LEVEL");
  logs->require_subcommand(1)->fallthrough();
  CLI::App* sub = logs->add_subcommand("level", "From which level on");
  sub->fallthrough();
  sub->callback([invocation] { invocation->command = "logs"; });
  const auto field = [invocation](const char* name) {
    return [invocation, name](const std::string& text) { invocation->fields[name] = text; };
  };

  sub->add_option_function<std::string>("level", field("level"))
      ->required()
      ->type_name("debug|info|warn|error");
  sub->add_option_function<std::string>("--for", field("for"),
                                        "Then the configured level comes back")
      ->type_name("TIME");
}

void AddNvmeAndConfig(CLI::App* app, Invocation* invocation) {
  AddWordCommand(app, {"nvme", "States on NVMe: their directories, and checking them"}, kNvmeWords,
                 invocation);
  AddWordCommand(app,
                 {"config", "memserver's settings: where they came from, and reading them again"},
                 kConfigWords, invocation);
}

std::string WhyNoChange(const Invocation& invocation) {
  if (!invocation.dry_run && !invocation.yes) return "";
  if (FindChange(invocation) != nullptr) return "";
  const std::string flag = invocation.dry_run ? "--dry-run" : "--yes";
  if (invocation.command == "api") return "it sends at once what it is given, and knows no " + flag;
  return "it changes nothing; " + flag + " is of " + ListChanges();
}

}  // namespace tidepool::client
