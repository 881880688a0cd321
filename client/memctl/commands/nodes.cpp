#include "client/memctl/commands/nodes.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text/json_quote.h"
#include "base/units.h"
#include "client/memctl/views/forms.h"
#include "client/memctl/views/json_tree.h"
#include "client/memctl/views/render.h"
#include "client/memctl/commands/run_programs.h"
#include "client/memctl/views/table.h"
#include "client/admin/views.h"

namespace tidepool::client {
namespace {

using Kind = JsonTree::Kind;

constexpr int kSshFailed = 255, kNoProgram = 127;

struct NodeAnswer {
  std::string node;
  int exit_code = 0;
  std::string output, errors;
  // A command's finding (health) is not a failure.
  bool failed() const { return exit_code != 0 && output.empty(); }
};

// Quotes a word for the remote shell.
std::string Quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Commands whose answers form one table: their JSON is rendered here.
bool IsMerged(const Invocation& invocation) {
  constexpr auto kMerged =
      std::to_array<std::string_view>({"status", "ps", "chunks", "tensors", "chunk", "quotas"});
  if (invocation.dry_run) return false;
  if (invocation.command == "health")
    return !invocation.fields.contains("check") && !invocation.fields.contains("unmute");
  if (invocation.command == "config")
    return invocation.action == "show" || invocation.action == "diff";
  return std::find(kMerged.begin(), kMerged.end(), invocation.command) != kMerged.end();
}

std::vector<NodeAnswer> AskNodes(const Invocation& invocation) {
  std::string words = "memctl";
  for (const std::string& word : invocation.words) words += " " + Quoted(word);
  words += invocation.json || IsMerged(invocation) ? " -o json"
           : invocation.form == "wide"             ? " -o wide"
                                                   : "";
  std::vector<std::vector<std::string>> commands;
  for (const std::string& node : invocation.nodes) {
    commands.push_back(
        {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", node, words});
    if (invocation.tell) invocation.tell("ssh " + node + " " + words);
  }

  const std::vector<ProgramEnd> ends = RunPrograms(commands);
  std::vector<NodeAnswer> answers;
  for (size_t i = 0; i < ends.size(); ++i) {
    NodeAnswer answer{invocation.nodes[i], ends[i].exit_code, ends[i].output, ends[i].errors};
    if (answer.exit_code == kSshFailed) {
      answer.exit_code = kExitNoServer;
      answer.errors += "ssh did not get there; `ssh " + answer.node +
                       " memctl version` has to work without a question\n";
    } else if (answer.exit_code == kNoProgram) {
      answer.exit_code = kExitFailed;
      answer.errors += "memctl was not found there (or ssh here)\n";
    }

    answers.push_back(std::move(answer));
  }
  return answers;
}

// The output on stderr, each line prefixed by its node; "node a: failed with exit code 4".
std::string RemarksOf(const std::vector<NodeAnswer>& answers) {
  std::string text;
  for (const NodeAnswer& answer : answers) {
    if (answer.failed())
      text += "node " + answer.node + ": failed with exit code " +
              std::to_string(answer.exit_code) + "\n";
    for (size_t begin = 0; begin < answer.errors.size();) {
      const size_t end = std::min(answer.errors.find('\n', begin), answer.errors.size());
      text += "node " + answer.node + ": " + answer.errors.substr(begin, end - begin) + "\n";
      begin = end + 1;
    }
  }

  return text;
}

JsonTree TextOf(const std::string& text) {
  return {.kind = Kind::kScalar, .scalar = QuoteJson(text)};
}

// One document, or (events) one line of JSON per event; anything else becomes a text.
JsonTree AnswerTree(const std::string& output) {
  auto whole = ReadJsonTree(output);
  if (whole.ok()) return *whole;

  JsonTree lines{.kind = Kind::kArray, .scalar = ""};
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    auto line = ReadJsonTree(std::string_view(output).substr(begin, end - begin));
    if (!line.ok()) return TextOf(output);
    lines.items.push_back(std::move(line).value());
    begin = end + 1;
  }
  return lines;
}

// {"node":"a","exit_code":0,"answer":{...}} or {"node":"b","exit_code":3,"error":"..."}.
JsonTree RowOf(const NodeAnswer& answer) {
  JsonTree row{.kind = Kind::kObject, .scalar = ""};
  row.members.emplace_back("\"node\"", TextOf(answer.node));
  row.members.emplace_back(
      "\"exit_code\"", JsonTree{.kind = Kind::kScalar, .scalar = std::to_string(answer.exit_code)});
  if (answer.failed()) {
    row.members.emplace_back("\"error\"", TextOf(answer.errors));
  } else {
    row.members.emplace_back("\"answer\"", AnswerTree(answer.output));
  }
  return row;
}

std::string JsonOf(const std::vector<NodeAnswer>& answers) {
  JsonTree all{.kind = Kind::kArray, .scalar = ""};
  for (const NodeAnswer& answer : answers) all.items.push_back(RowOf(answer));
  return all.Text();
}

// Merges the documents: concatenates their lists, each element with its node; takes all else from
// the first.
std::string MergedDocument(const std::vector<NodeAnswer>& answers) {
  JsonTree merged{.kind = Kind::kObject, .scalar = ""};
  for (const NodeAnswer& answer : answers) {
    auto tree = ReadJsonTree(answer.output);
    if (!tree.ok()) continue;
    for (auto& [key, value] : tree->members) {
      for (JsonTree& item : value.items) {
        if (item.kind == Kind::kObject) item.members.emplace_back("\"node\"", TextOf(answer.node));
      }

      const auto same = [&key = key](const auto& member) { return member.first == key; };
      const auto found = std::find_if(merged.members.begin(), merged.members.end(), same);
      if (found == merged.members.end()) {
        merged.members.emplace_back(key, std::move(value));
      } else {
        for (JsonTree& item : value.items) found->second.items.push_back(std::move(item));
      }
    }
  }
  return merged.Text();
}

// One line per node.
Result<std::string> StatusTable(const std::vector<NodeAnswer>& answers, const Style& style) {
  Table table({{"STATE"},
               {"VERSION"},
               {"UP", true},
               {"POOL", true},
               {"USED", true},
               {"NVME", true},
               {"USED", true},
               {"GPUS", true},
               {"JOBS", true},
               {"RANKS", true}});

  for (const NodeAnswer& answer : answers) {
    if (answer.failed()) continue;
    TP_ASSIGN_OR_RETURN(const StatusView status, ReadStatus(answer.output));
    table.Add({status.state, status.version, FormatDuration(status.uptime_seconds),
               FormatBytes(status.pool_bytes), FormatBytes(status.pool_used),
               status.nvme_bytes > 0 ? FormatBytes(status.nvme_bytes) : "-",
               status.nvme_bytes > 0 ? FormatBytes(status.nvme_used) : "-",
               std::to_string(status.gpus.size()), std::to_string(status.jobs),
               std::to_string(status.sessions)},
              answer.node);
  }

  std::string text;
  for (const std::string& line : table.Lines(style.header)) text += line + "\n";
  return text;
}

// Short texts as a table, longer ones below their node's name.
std::string TextsOf(const std::vector<NodeAnswer>& answers) {
  const auto is_line = [](const NodeAnswer& answer) {
    return std::count(answer.output.begin(), answer.output.end(), '\n') <= 1;
  };
  const bool lines = std::all_of(answers.begin(), answers.end(), is_line);
  Table table({{""}});
  std::string text;
  for (const NodeAnswer& answer : answers) {
    if (answer.output.empty()) continue;
    table.Add({answer.output.substr(0, answer.output.find('\n'))}, answer.node);
    text += "== " + answer.node + " ==\n" + answer.output;
  }

  if (!lines) return text;
  text.clear();
  for (const std::string& line : table.Lines(false)) text += line + "\n";
  return text;
}

}  // namespace

std::vector<std::string> WordsForNodes(const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    // Flags that apply to this machine, with their values.
    if (word == "--node" || word == "-o" || word == "--output") {
      ++i;
    } else if (word == "--watch") {
      if (i + 1 < words.size() && ParseDurationNs(words[i + 1]).ok()) ++i;
    } else if (!word.starts_with("--node=") && !word.starts_with("--output=") &&
               !word.starts_with("--watch=") && !word.starts_with("-o")) {
      kept.push_back(word);
    }
  }
  return kept;
}

std::string WhyNotOnNodes(const Invocation& invocation) {
  for (const std::string& node : invocation.nodes) {
    if (node.empty() || node.front() == '-') return "'" + node + "' is no name of a machine";
  }
  constexpr auto kLocal =
      std::to_array<std::string_view>({"record", "report", "timeline", "snapshot"});
  const std::string there = "run it there: ssh " + invocation.nodes.front() + " memctl ";
  if (std::find(kLocal.begin(), kLocal.end(), invocation.command) != kLocal.end())
    return invocation.command + " writes a file; " + there + invocation.command;

  if (invocation.command == "page")
    return "page serves its own machine; ssh -L is in `docs/operations.md`";
  if (invocation.command == "top")
    return "top draws one machine; " + there +
           "top, or look at all with: memctl --node ... status --watch";
  if (invocation.command == "events" && invocation.watch_ns)
    return "events are followed on one machine; " + there + "events -f";
  if (!invocation.from.empty() || !invocation.xml.empty())
    return "a file is read here, and takes no --node";
  return "";
}

Result<Shown> RunOnNodes(const Invocation& invocation, const Style& style,
                         const RunHere& run_here) {
  const std::vector<NodeAnswer> answers = AskNodes(invocation);
  Shown shown{"", RemarksOf(answers)};
  for (const NodeAnswer& answer : answers)
    shown.exit_code = std::max(shown.exit_code, answer.exit_code);
  const bool none = std::all_of(answers.begin(), answers.end(),
                                [](const NodeAnswer& answer) { return answer.failed(); });

  const bool is_document = invocation.json && invocation.form != "jsonl";
  if (is_document) {
    shown.result = JsonOf(answers) + "\n";
    if (invocation.form == "yaml") {
      TP_ASSIGN_OR_RETURN(shown.result, AsYaml(shown.result));
    }
  } else if (none) {
    return shown;
  } else if (IsMerged(invocation) && invocation.command != "status") {
    // Rendered, or split into lines, like the answer of one server.
    Invocation here = invocation;
    here.nodes.clear();
    here.answer = MergedDocument(answers);

    TP_ASSIGN_OR_RETURN(const Shown merged, run_here(here));
    shown.result = merged.result;
    shown.remark += merged.remark;
  } else if (invocation.json) {
    for (const NodeAnswer& answer : answers) shown.result += RowOf(answer).Text() + "\n";
  } else if (invocation.command == "status") {
    TP_ASSIGN_OR_RETURN(shown.result, StatusTable(answers, style));
  } else {
    shown.result = TextsOf(answers);
  }
  return shown;
}

}  // namespace tidepool::client
