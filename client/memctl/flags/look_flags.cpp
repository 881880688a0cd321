#include "client/memctl/flags/look_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

namespace tidepool::client {
namespace {

// Empty if the text is a step.
std::string IsStep(const std::string& text) {
  const bool number = !text.empty() && text.size() <= 18 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return number || text == "last" ? ""
                                  : "'" + text + "' is neither the number of a step nor `last`";
}

constexpr auto kRunWords = std::to_array<Word>({
    {"record", "Look for a while, and keep what was seen: memctl record run.rec"},
    {"report",
     "Look for a while, and write what was seen as one HTML page: memctl report run.html"},
    {"timeline",
     "Look for a while, and write steps, phases and rates as trace events for ui.perfetto.dev: "
     "memctl timeline run.json"},
});

// memctl record|report|timeline FILE [--for TIME] [--from FILE]
template <typename Add>
void AddRunCommands(Add add, Invocation* invocation) {
  const auto take_for = [invocation](const std::string& text) { invocation->fields["for"] = text; };
  for (const Word& word : kRunWords) {
    CLI::App* sub = add(word.name, word.help);
    sub->add_option("file", invocation->target, "What is written (also: -o FILE)")
        ->type_name("FILE");

    CLI::Option* length = sub->add_option_function<std::string>(
        "--for", take_for, "How long (10s), every --watch (250ms; timeline 50ms)");
    length->type_name("TIME");
    if (std::string_view(word.name) == "record") {
      AddBy(sub, invocation);
      continue;
    }

    sub->add_option("--from", invocation->from, "What `memctl record` has seen, instead of looking")
        ->type_name("FILE")
        ->excludes(length);
    if (std::string_view(word.name) == "timeline") {
      sub->add_option("--step", invocation->step,
                      "This step alone, as memctl ps counts them, or the last that ends; ends when "
                      "it is over")
          ->check(IsStep)
          ->type_name("N|last");
      continue;
    }

    sub->add_option("--metrics", invocation->metrics,
                    "metrics.jsonl of the trainer: hit rate and its bound, late prefetches")
        ->type_name("FILE");
  }
}

constexpr auto kCheckpointWords = std::to_array<Word>({
    {"list", "The checkpoints of a folder, by step; a look at their lengths says which are whole"},
    {"verify",
     "Read all of one, or of every one of a folder, and compare each byte with its check; exit "
     "code 7 where one is damaged"},
    {"diff",
     "What two of them hold differently, step and tensors, by their checks; exit code 1 where "
     "something differs"},
    {"prune", "Remove all but the newest of a folder: memctl checkpoint prune DIR --keep 3"},
});

// memctl health [detail | mute CHECK [TIME] | unmute CHECK]: words for the same flags.
void AddHealthWords(CLI::App* health, Invocation* invocation) {
  const auto word = [&](const char* name, const char* help) {
    CLI::App* sub = health->add_subcommand(name, help);
    sub->fallthrough();
    return sub;
  };
  const auto take = [invocation](const char* field) {
    return [invocation, field](const std::string& text) { invocation->fields[field] = text; };
  };

  health->require_subcommand(0, 1);
  word("detail", "Every check, as without this word");
  CLI::App* mute =
      word("mute",
           "For a time, a check counts for nothing in the whole: memctl health mute DRAINING 4h");
  mute->add_option_function<std::string>("check", take("check"))->required()->type_name("CHECK");
  mute->add_option_function<std::string>("time", take("for"), "How long (1h); 30 days at most")
      ->type_name("TIME");
  CLI::App* unmute = word("unmute", "It counts again");
  unmute->add_option_function<std::string>("check", take("unmute"))->required()->type_name("CHECK");
}

void AddDrain(CLI::App* drain, Invocation* invocation) {
  const auto take = [invocation](const std::string& text) { invocation->fields["wait"] = text; };
  drain
      ->add_option_function<std::string>(
          "--wait", take, "Until no rank is attached any more; exit code 6 when some still are")
      ->type_name("TIME");
}

}  // namespace

// The unit of the picture's columns.
void AddBy(CLI::App* sub, Invocation* invocation) {
  sub->add_option("--by", invocation->by, "A column, or a line, for each of these (chunk)")
      ->check(CLI::IsMember({"chunk", "layer", "expert", "tensor", "job"}))
      ->type_name("chunk|layer|expert|tensor|job");
}

// memctl top [-b] [-n N], memctl events [-f] [--after N] [--limit N], memctl explain [CODE]
void AddLookCommands(CLI::App* app, Invocation* invocation) {
  const auto add = [&](const char* name, const char* help) {
    CLI::App* sub = app->add_subcommand(name, help);
    sub->fallthrough();
    sub->callback([invocation, name] { invocation->command = name; });
    return sub;
  };
  CLI::App* top = add("top", "Rates of copies, updates and jobs, again every --watch (1s)");
  top->add_flag("-b,--batch", invocation->batch, "One behind the other instead of in place");
  top->add_option("-n,--rounds", invocation->rounds, "So many times; else until Ctrl-C")
      ->type_name("N")
      ->check(CLI::PositiveNumber);

  CLI::App* health =
      add("health", "memserver's own checks; exit code 0 all is well, 1 warnings, 2 errors");
  const auto take = [invocation](const char* field) {
    return [invocation, field](const std::string& text) { invocation->fields[field] = text; };
  };
  CLI::Option* mute = health->add_option_function<std::string>(
      "--mute", take("check"), "For --for, this check counts for nothing in the whole");
  mute->type_name("CHECK");
  health->add_option_function<std::string>("--for", take("for"), "How long (1h); 30 days at most")
      ->type_name("TIME")
      ->needs(mute);

  health->add_option_function<std::string>("--unmute", take("unmute"), "It counts again")
      ->type_name("CHECK")
      ->excludes(mute);
  AddHealthWords(health, invocation);
  AddDrain(add("drain", "Take no new jobs; those that are there go on"), invocation);
  CLI::App* events = add("events", "What memserver has logged; -o json: an object a line");
  events->add_flag_callback(
      "-f,--follow", [invocation] { invocation->watch_ns = kNsPerSecond / 2; },
      "Go on with what comes");

  CLI::Option* after =
      events->add_option("--after", invocation->cursor, "Only what is behind this number");
  after->type_name("N")->check(CLI::NonNegativeNumber);
  events->add_option("--limit", invocation->limit, "At most so many, from the oldest on")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  events->add_option("-n,--last", invocation->last, "The last N alone")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->excludes(after);

  AddRunCommands(add, invocation);
  CLI::App* page = add(
      "page",
      "Show what memserver does in a browser, until Ctrl-C; with the rights of whoever runs it");
  page->add_option("--listen", invocation->listen,
                   "Where: an address of the loopback; port 0: any that is free (127.0.0.1:8642)")
      ->type_name("ADDRESS");
  add("explain",
      "What an error means and what to do: memctl explain TP2101; without a code, all of them")
      ->add_option("code", invocation->target, "A number or a name")
      ->type_name("CODE");
}

bool LooksForAWhile(const std::string& command) {
  return std::any_of(kRunWords.begin(), kRunWords.end(),
                     [&](const Word& word) { return command == word.name; });
}

void AddCheckpointCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* whole = app->add_subcommand(
      "checkpoint", "Checkpoints on disk; no memserver is asked: memctl checkpoint list DIR");
  whole->require_subcommand(1)->fallthrough();

  for (const Word& word : kCheckpointWords) {
    const std::string_view name = word.name;
    CLI::App* sub = whole->add_subcommand(word.name, word.help);
    sub->fallthrough();
    sub->callback([invocation, action = word.name] {
      invocation->command = "checkpoint";
      invocation->action = action;
    });
    sub->add_option("dir", invocation->target,
                    name == "diff" || name == "verify" ? "A checkpoint" : "A folder of them")
        ->required()
        ->type_name("DIR");

    if (name == "diff")
      sub->add_option("other", invocation->value, "Another one")->required()->type_name("DIR");
    if (name != "prune") continue;
    const auto take = [invocation](const std::string& text) { invocation->fields["keep"] = text; };
    sub->add_option_function<std::string>("--keep", take, "How many whole ones stay, from 1 on")
        ->required()
        ->type_name("N");
  }
}

void AddSnapshotCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* sub = app->add_subcommand(
      "snapshot",
      "Write all states of a job as a checkpoint, while it trains or without its ranks");
  sub->fallthrough();
  sub->callback([invocation] { invocation->command = "snapshot"; });
  sub->add_option("job", invocation->job, "By name or number")->required()->type_name("JOB");
  const auto take = [invocation](const char* field) {
    return [invocation, field](const std::string& text) { invocation->fields[field] = text; };
  };

  sub->add_option_function<std::string>("--to", take("to"), "The folder of checkpoints")
      ->required()
      ->type_name("DIR");
  sub->add_option_function<std::string>("--keep", take("keep"),
                                        "How many whole ones stay there, this one among them (all)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  sub->add_option_function<std::string>("--like", take("like"),
                                        "A checkpoint or saved model of the same run, for "
                                        "config.json and tokenizer (that of --to)")
      ->type_name("DIR");
}

}  // namespace tidepool::client
