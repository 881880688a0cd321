#include "trainer/cli/flags_file.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/formats/toml_file.h"
#include "base/text/json_writer.h"

namespace tidepool::trainer {
namespace {

// "--lr" for "--lr" and "--lr=1"; empty if `word` is not a flag.
std::string NameOf(const std::string& word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : std::string();
}

// The file of --config in a `run` command line; empty: none.
std::string FileIn(const std::vector<std::string>& words) {
  if (words.size() < 2 || words[1] != "run") return {};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kConfigFlag && i + 1 < words.size()) return words[i + 1];
    if (NameOf(words[i]) == kConfigFlag) return words[i].substr(words[i].find('=') + 1);
  }
  return {};
}

// The last part of "model.preset": tables are for the reader.
std::string FlagOf(const FileSetting& setting) {
  return "--" + setting.key.substr(setting.key.rfind('.') + 1);
}

Status Twice(const FileSetting& setting, const char* why, const char* fix) {
  return Status(ErrorId::kConfigBadValue, FlagOf(setting).substr(2) + " " + why)
      .Where(setting.where)
      .Fix(fix);
}

}  // namespace

Result<std::vector<std::string>> WithFlagsOfFile(std::vector<std::string> words) {
  const std::string path = FileIn(words);
  if (path.empty()) return words;
  TP_ASSIGN_OR_RETURN(const std::vector<FileSetting> settings,
                      ReadTomlFile(path, Fractions::kAllowed));

  std::set<std::string> given, seen;
  for (const std::string& word : words) given.insert(NameOf(word));
  std::vector<std::string> of_file;
  for (const FileSetting& setting : settings) {
    const std::string flag = FlagOf(setting);
    if (flag == kConfigFlag)
      return Twice(setting, "cannot be in such a file itself", "put all settings into one file");
    if (!seen.insert(flag).second)
      return Twice(setting, "is given twice", "leave one of the two out");
    // A switch has no value: it is given if true, left out if false.
    if (given.contains(flag) || setting.text == "false") continue;
    of_file.push_back(setting.text == "true" ? flag : flag + "=" + setting.text);
  }

  // Inserted after the command's name.
  words.insert(words.begin() + std::min<std::ptrdiff_t>(2, std::ssize(words)), of_file.begin(),
               of_file.end());
  return words;
}

std::string ConfigText(const std::vector<ShownFlag>& flags) {
  std::string text, group;
  for (const ShownFlag& flag : flags) {
    if (flag.group != group) {
      group = flag.group;
      text += "\n[" + group + "]\n";
    }

    text += "# " + flag.description + "\n";
    if (flag.value.empty()) {
      text += "# " + flag.name + " =\n";
      continue;
    }
    JsonWriter quoted;  // TOML's basic strings use JSON's escapes
    quoted.String(flag.value);
    text += flag.name + " = " + (flag.is_text ? quoted.text() : flag.value) + "\n";
  }
  return text.empty() ? text : text.substr(1);
}

}  // namespace tidepool::trainer
