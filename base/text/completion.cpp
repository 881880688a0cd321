#include "base/text/completion.h"

#include <algorithm>

namespace tidepool {
namespace {

bool IsWord(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), plain);
}

std::vector<std::string> Parted(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Quotes for the shell, in single quotes.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c == '\n' ? ' ' : c);
  return out + "'";
}

std::string Joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// The last word of "job quota".
std::string NameOf(const CompletedCommand& command) {
  return command.path.substr(command.path.rfind(' ') + 1);
}

std::vector<const CompletedCommand*> Below(const CompletedCommand& parent,
                                           const std::vector<CompletedCommand>& commands) {
  std::vector<const CompletedCommand*> below;
  for (const CompletedCommand& command : commands) {
    if (command.path.empty()) continue;
    const size_t blank = command.path.rfind(' ');
    if ((blank == std::string::npos ? "" : command.path.substr(0, blank)) == parent.path)
      below.push_back(&command);
  }
  return below;
}

// The loop that determines the command: the same in both shells.
std::string FindCommand(const std::string& words, const std::vector<CompletedCommand>& commands) {
  std::vector<std::string> patterns;
  for (const CompletedCommand& command : commands) {
    const bool first = command.path.find(' ') == std::string::npos;
    if (!command.path.empty())
      patterns.push_back("\"" + std::string(first ? " " : "") + command.path + "\"");
  }

  std::string text = "  for each in " + words + "; do\n";
  if (!patterns.empty())
    text += "    case \"$chosen $each\" in\n      " + Joined(patterns, " | ") +
            ") chosen=${chosen:+$chosen }$each ;;\n    esac\n";
  return text + "  done\n";
}

// "chunks|--state": the key under which a flag's value is completed.
std::string PatternOf(const CompletedCommand& command, const CompletedFlag& flag) {
  std::vector<std::string> patterns;
  for (const std::string& name : flag.names)
    patterns.push_back((command.path.empty() ? "*\"|" : "\"" + command.path + "|") + name + "\"");
  return Joined(patterns, " | ");
}

// `action` makes the code that offers values.
template <typename Action>
std::string ValueCases(const std::vector<CompletedCommand>& commands, Action action) {
  std::string cases;
  // The program's own flags come last, since a command may have one of the same name.
  for (size_t i = commands.size(); i-- > 0;) {
    for (const CompletedFlag& flag : commands[i].flags) {
      if (flag.takes_value)
        cases +=
            "    " + PatternOf(commands[i], flag) + ") " + action(flag.values) + "; return ;;\n";
    }
  }
  return cases.empty() ? "" : "  case \"$chosen|$before\" in\n" + cases + "  esac\n";
}

std::string BashValues(const CompletedValues& values) {
  if (!values.words.empty())
    return "COMPREPLY=($(compgen -W " + Quoted(Joined(values.words, " ")) + " -- \"$word\"))";
  if (values.directories) return "COMPREPLY=($(compgen -d -- \"$word\"))";
  if (values.files) return "COMPREPLY=($(compgen -f -- \"$word\"))";
  // Not compgen, which would expand its argument.
  if (!values.lines_of.empty()) {
    return "while read -r each; do [[ $each == \"$word\"* ]] && COMPREPLY+=(\"$(printf %q "
           "\"$each\")\"); done < <(" +
           values.lines_of + ")";
  }
  return ":";
}

std::string ZshValues(const CompletedValues& values) {
  if (!values.words.empty()) return "compadd -- " + Joined(values.words, " ");
  if (values.directories) return "_files -/";
  if (values.files) return "_files";
  if (!values.lines_of.empty()) return "compadd -- ${(f)\"$(" + values.lines_of + ")\"}";
  return ":";
}

// Quotes for fish, in single quotes, where backslash is one of two special characters.
std::string FishQuoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

// The end of a fish `complete` command: the allowed values.
std::string FishValues(const CompletedValues& values) {
  if (!values.words.empty()) return " -f -a " + FishQuoted(Joined(values.words, " "));
  if (values.directories) return " -f -a '(__fish_complete_directories)'";
  if (values.files) return " -F";
  if (!values.lines_of.empty()) return " -f -a " + FishQuoted("(" + values.lines_of + ")");
  return " -f";
}

std::string FishFlag(const CompletedFlag& flag) {
  std::string text;
  for (const std::string& name : flag.names)
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (flag.takes_value) text += " -r" + FishValues(flag.values);
  return text + " -d " + FishQuoted(flag.help);
}

std::string FlagNames(const CompletedCommand& command) {
  std::vector<std::string> names;
  for (const CompletedFlag& flag : command.flags)
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  return Joined(names, " ");
}

// 'name:description', for _describe.
std::string Described(const std::string& name, const std::string& help) {
  return Quoted(name + ":" + help);
}

std::string DescribedFlags(const CompletedCommand& command) {
  std::vector<std::string> items;
  for (const CompletedFlag& flag : command.flags) {
    for (const std::string& name : flag.names) items.push_back(Described(name, flag.help));
  }
  return Joined(items, " ");
}

}  // namespace

CompletedValues ValuesOfKind(std::string_view kind) {
  const size_t open = kind.find('{'), close = kind.rfind('}');
  if (open != std::string_view::npos && close != std::string_view::npos && open < close) {
    return {.words = Parted(kind.substr(open + 1, close - open - 1), ',')};
  }
  CompletedValues values{.files = kind == "FILE", .directories = kind == "DIR"};
  for (const std::string& part : Parted(kind, '|')) {
    if (IsWord(part)) values.words.push_back(part);
  }
  return values;
}

std::string BashCompletion(const std::string& program,
                           const std::vector<CompletedCommand>& commands) {
  std::string text = "# bash completion of " + program + ", made by `" + program +
                     " completion bash`.\n_" + program + "() {\n";

  text +=
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} chosen= words= "
      "flags= each\n"
      "  COMPREPLY=()\n"
      "  if [[ $word == = ]]; then\n    word=\n"
      "  elif [[ $before == = ]]; then\n    before=${COMP_WORDS[COMP_CWORD - 2]}\n  fi\n";

  text += FindCommand("\"${COMP_WORDS[@]:1:COMP_CWORD-1}\"", commands) +
          ValueCases(commands, BashValues) + "  case $chosen in\n";
  for (const CompletedCommand& command : commands) {
    std::vector<std::string> below;
    for (const CompletedCommand* each : Below(command, commands)) below.push_back(NameOf(*each));

    text += "    \"" + command.path + "\")\n";
    if (!command.path.empty()) text += "      flags=" + Quoted(FlagNames(command)) + "\n";
    if (!below.empty()) {
      text += "      words=" + Quoted(Joined(below, " ")) + "\n";
    } else if (const std::string offered = BashValues(command.arguments); offered != ":") {
      text += "      [[ $word == -* ]] || { " + offered + "; return; }\n";
    }
    text += "      ;;\n";
  }

  text += "  esac\n  flags+=" + Quoted(" " + FlagNames(commands.front())) + "\n";
  text +=
      "  [[ $word != -* && -n $words ]] || words=$flags\n  COMPREPLY=($(compgen -W \"$words\" -- "
      "\"$word\"))\n}\n";
  return text + "complete -F _" + program + " " + program + "\n";
}

std::string ZshCompletion(const std::string& program,
                          const std::vector<CompletedCommand>& commands) {
  std::string text = "#compdef " + program + "\n# zsh completion of " + program + ", made by `" +
                     program + " completion zsh`.\n_" + program + "() {\n";

  text +=
      "  local before=${words[CURRENT-1]} chosen= each\n  local -a commands flags\n"
      "  if [[ $PREFIX == --*=* ]]; then\n    before=${PREFIX%%=*}\n    compset -P '*='\n  fi\n";

  text += FindCommand("\"${(@)words[2,CURRENT-1]}\"", commands) + ValueCases(commands, ZshValues) +
          "  case $chosen in\n";
  for (const CompletedCommand& command : commands) {
    std::vector<std::string> below;
    for (const CompletedCommand* each : Below(command, commands))
      below.push_back(Described(NameOf(*each), each->help));

    text += "    \"" + command.path + "\")\n";
    if (!command.path.empty()) text += "      flags=(" + DescribedFlags(command) + ")\n";
    if (!below.empty()) {
      text += "      commands=(" + Joined(below, " ") + ")\n";
    } else if (const std::string offered = ZshValues(command.arguments); offered != ":") {
      text += "      [[ $PREFIX == -* ]] || { " + offered + "; return }\n";
    }
    text += "      ;;\n";
  }

  text += "  esac\n  flags+=(" + DescribedFlags(commands.front()) + ")\n";
  text +=
      "  if [[ $PREFIX != -* ]] && (( $#commands )); then\n    _describe command commands\n  "
      "else\n    _describe -o flag flags\n  fi\n}\n";
  return text + "if [[ ${funcstack[1]} == _" + program + " ]]; then _" + program +
         " \"$@\"; else compdef _" + program + " " + program + "; fi\n";
}

std::string FishCompletion(const std::string& program,
                           const std::vector<CompletedCommand>& commands) {
  const std::string chosen = "__" + program + "_command";
  std::string text = "# fish completion of " + program + ", made by `" + program +
                     " completion fish`.\nfunction " + chosen +
                     "\n    set -l chosen ''\n    set -l words (commandline -opc)\n"
                     "    for each in $words[2..]\n        switch \"$chosen $each\"\n";

  std::string paths;
  for (const CompletedCommand& command : commands) {
    const bool first = command.path.find(' ') == std::string::npos;
    if (!command.path.empty()) paths += " " + FishQuoted((first ? " " : "") + command.path);
  }
  if (!paths.empty())
    text += "            case" + paths +
            "\n                set chosen (string trim -- \"$chosen $each\")\n";
  text += "        end\n    end\n    echo -- $chosen\nend\ncomplete -c " + program + " -f\n";

  for (const CompletedCommand& command : commands) {
    const std::string there = "complete -c " + program + " -n " +
                              FishQuoted("test (" + chosen + ") = '" + command.path + "'");
    const auto below = Below(command, commands);
    for (const CompletedCommand* each : below)
      text += there + " -a " + NameOf(*each) + " -d " + FishQuoted(each->help) + "\n";
    if (below.empty()) text += there + FishValues(command.arguments) + "\n";

    // The program's own flags are allowed behind every command.
    for (const CompletedFlag& flag : command.flags)
      text += (command.path.empty() ? "complete -c " + program : there) + FishFlag(flag) + "\n";
  }
  return text;
}

std::string CompletionFor(const std::string& shell, const std::string& program,
                          const std::vector<CompletedCommand>& commands) {
  if (shell == "zsh") return ZshCompletion(program, commands);
  if (shell == "fish") return FishCompletion(program, commands);
  return BashCompletion(program, commands);
}

}  // namespace tidepool
