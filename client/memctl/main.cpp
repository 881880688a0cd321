// memctl: inspects a running memserver through its admin socket. Results go to stdout, everything
// else to stderr.
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/clock.h"
#include "base/text/error_text.h"
#include "client/memctl/commands/changes.h"
#include "client/memctl/commands/commands.h"
#include "client/memctl/flags/flags.h"
#include "client/memctl/page/page_server.h"

namespace {

using tidepool::client::Invocation;
using tidepool::client::Shown;
using tidepool::client::Style;

Style StyleOf(const Invocation& invocation) {
  Style style;
  winsize size{};
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.width = size.ws_col;
  const char* no_color = std::getenv("NO_COLOR");
  style.color = terminal && invocation.color && (no_color == nullptr || *no_color == '\0');
  style.header = invocation.header;
  return style;
}

// False when the reader is gone (a closed pipe).
bool Print(const std::string& text, std::FILE* stream) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() &&
         std::fflush(stream) == 0;
}

// Asks the person at the terminal before an irreversible change. Without a terminal, a script's
// call counts as consent. Errors: those of the preview, which the change would fail with, too.
tidepool::Result<bool> IsWanted(const Invocation& invocation) {
  const auto* change = tidepool::client::FindChange(invocation);
  const bool asks = change != nullptr && change->asks && !invocation.yes && !invocation.dry_run;
  if (!asks || isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) return true;
  Invocation dry = invocation;
  dry.dry_run = true;
  dry.words.emplace_back("--dry-run");
  dry.form = "table";
  dry.json = false;

  TP_ASSIGN_OR_RETURN(const Shown preview, tidepool::client::RunCommand(dry, StyleOf(dry)));
  if (preview.exit_code != 0) Print(preview.remark, stderr);
  Print(preview.result + "do it? [y/N] ", stderr);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "yes") return true;
  Print("nothing was changed\n", stderr);
  return false;
}

// With -q the exit code reports a change; requested data are shown all the same.
bool IsShown(const Invocation& invocation) {
  if (!invocation.quiet || invocation.json) return true;
  for (const char* probe : {"ready", "live", "wait-ready"}) {
    if (invocation.command == probe) return false;
  }
  return invocation.dry_run || tidepool::client::FindChange(invocation) == nullptr;
}

int RunOnce(Invocation* invocation, bool on_cleared_screen) {
  const auto shown = RunCommand(*invocation, StyleOf(*invocation));
  if (on_cleared_screen) Print("\033[H\033[2J", stdout);
  if (!shown.ok()) {
    Print(ErrorText(shown.status()) + "\n", stderr);
    return shown.status().exit_code();
  }

  if (!invocation->quiet || shown.value().exit_code != 0)
    Print(tidepool::FoldText(shown.value().remark), stderr);
  if (IsShown(*invocation) && !Print(shown.value().result, stdout)) return tidepool::kExitFailed;
  invocation->cursor = shown.value().cursor.empty() ? invocation->cursor : shown.value().cursor;
  return shown.value().exit_code;
}

// Repeats until Ctrl-C or an error; updates in place on a terminal, appends blocks elsewhere.
int Watch(Invocation invocation) {
  const bool follows = invocation.command == "events", looks_twice = invocation.command == "top";
  const bool terminal =
      isatty(STDOUT_FILENO) == 1 && !invocation.json && !invocation.batch && !follows;

  for (uint64_t round = 1;; ++round) {
    const int exit_code = RunOnce(&invocation, terminal);
    if (exit_code != 0 || round == invocation.rounds) return exit_code;
    const bool yaml = invocation.form == "yaml";
    if (!terminal && !follows && (!invocation.json || yaml) &&
        !Print(yaml ? "---\n" : "\n", stdout))
      return tidepool::kExitFailed;
    if (!looks_twice) invocation.clock->SleepNs(*invocation.watch_ns);
  }
}

// Serves until Ctrl-C. The address is the result, so a script can read it.
int ServePage(const Invocation& invocation) {
  const auto server = tidepool::client::PageServer::Open(invocation);
  if (!server.ok()) {
    Print(ErrorText(server.status()) + "\n", stderr);
    return server.status().exit_code();
  }
  Print("the page is for whoever has this address, all of it; Ctrl-C ends it\n", stderr);
  if (!Print(server.value()->url() + "\n", stdout)) return tidepool::kExitFailed;
  const auto ended = server.value()->Serve();
  Print(ErrorText(ended) + "\n", stderr);
  return ended.exit_code();
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto line = tidepool::client::ParseCommandLine(argc, argv);
  if (!line.invocation.has_value()) {
    Print(line.exit_code == 0 ? line.text : tidepool::FoldText(line.text),
          line.exit_code == 0 ? stdout : stderr);
    return line.exit_code;
  }

  Invocation invocation = *line.invocation;
  tidepool::SteadyClock clock;
  invocation.clock = &clock;
  if (invocation.verbose)
    invocation.tell = [](const std::string& text) { Print("memctl: " + text + "\n", stderr); };
  if (!invocation.quiet)
    invocation.say = [](const std::string& text) { Print(text + "\n", stderr); };

  if (invocation.command == "page") return ServePage(invocation);
  const auto wanted = IsWanted(invocation);
  if (!wanted.ok()) {
    Print(ErrorText(wanted.status()) + "\n", stderr);
    return wanted.status().exit_code();
  }
  if (!wanted.value()) return tidepool::kExitFailed;
  // Some commands repeat by themselves, or show data that no longer change.
  bool again = invocation.watch_ns.has_value() && invocation.from.empty();
  for (const char* once : {"record", "report", "timeline"})
    again = again && invocation.command != once;
  return again ? Watch(invocation) : RunOnce(&invocation, false);
}
