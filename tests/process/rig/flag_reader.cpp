#include "tests/process/rig/flag_reader.h"

#include <algorithm>
#include <iostream>
#include <utility>

namespace tidepool::testing {
namespace {

constexpr int kExitUsage = 2;

int Refuse(const std::string& what) {
  std::cerr << "error: " << what << " (see --help)\n";
  return kExitUsage;
}

bool IsFlag(std::string_view word) {
  return word.starts_with("--");
}

}  // namespace

FlagReader::FlagReader(std::string purpose) : purpose_(std::move(purpose)) {}

void FlagReader::Switch(const std::string& name, bool* value, const std::string& help) {
  flags_.push_back({name, help, Words::kNone, [value](std::string_view) {
                      *value = true;
                      return true;
                    }});
}

void FlagReader::Text(const std::string& name, std::string* value, const std::string& help,
                      std::vector<std::string> allowed) {
  Set(
      name,
      [value, allowed = std::move(allowed)](std::string_view word) {
        if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), word) == allowed.end())
          return false;
        *value = word;
        return true;
      },
      help);
}

void FlagReader::Texts(const std::string& name, std::vector<std::string>* values,
                       const std::string& help) {
  flags_.push_back({name, help, Words::kSeveral, [values](std::string_view word) {
                      values->emplace_back(word);
                      return true;
                    }});
}

void FlagReader::Set(const std::string& name, Setter setter, const std::string& help) {
  flags_.push_back({name, help, Words::kOne, std::move(setter)});
}

std::optional<int> FlagReader::Read(int argc, char** argv) const {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      PrintHelp();
      return 0;
    }
    const Flag* flag = Find(name);
    if (flag == nullptr) return Refuse("unknown argument \"" + name + "\"");

    if (flag->words == Words::kNone) {
      flag->setter("");
      continue;
    }
    if (i + 1 >= argc || IsFlag(argv[i + 1])) return Refuse(name + " needs a word");

    do {
      const std::string word = argv[++i];
      if (!flag->setter(word)) return Refuse(name + " does not take \"" + word + "\"");
    } while (flag->words == Words::kSeveral && i + 1 < argc && !IsFlag(argv[i + 1]));
  }
  return std::nullopt;
}

const FlagReader::Flag* FlagReader::Find(std::string_view name) const {
  const auto found = std::find_if(flags_.begin(), flags_.end(),
                                  [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

void FlagReader::PrintHelp() const {
  std::cout << purpose_ << "\n";
  for (const Flag& flag : flags_)
    std::cout << "  " << flag.name << (flag.words == Words::kNone ? "" : " WORD")
              << (flag.help.empty() ? "" : "   " + flag.help) << "\n";
}

}  // namespace tidepool::testing
