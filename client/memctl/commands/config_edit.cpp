#include "client/memctl/commands/config_edit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace tidepool::client {
namespace {

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string_view Trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

// Numbers stay as they are, all else becomes a string.
std::string Toml(const std::string& value) {
  if (!value.empty() && value.size() < 19 &&
      value.find_first_not_of("0123456789") == std::string::npos &&
      (value == "0" || value[0] != '0'))
    return value;
  std::string text = "\"";
  for (const char c : value) text += (c == '"' || c == '\\' ? "\\" : "") + std::string(1, c);
  return text + "\"";
}

// The text after the value in "key = value  # comment": "  # comment". False if the value is more
// than one word or string.
bool FindRest(std::string_view behind, std::string* rest) {
  const size_t begin = std::min(behind.find_first_not_of(" \t"), behind.size());
  std::string_view value = behind.substr(begin);
  if (value.empty() || value[0] == '[' || value[0] == '{' || value.starts_with("\"\"\"") ||
      value.starts_with("'''"))
    return false;

  size_t end = 0;
  if (value[0] == '"' || value[0] == '\'') {
    for (end = 1; end < value.size() && value[end] != value[0]; ++end)
      end += value[0] == '"' && value[end] == '\\' ? 1 : 0;
    if (end++ >= value.size()) return false;
  } else {
    end = std::min(value.find_first_of(" \t\r#"), value.size());
  }
  value.remove_prefix(end);
  *rest = value;
  return Trimmed(value).empty() || Trimmed(value)[0] == '#';
}

Status InTheWay(const std::string& line) {
  return Status(ErrorId::kUsageError, "memctl cannot change this line without guessing")
      .Why(line)
      .Fix("edit the file, then memctl config reload");
}

}  // namespace

Result<EditedText> EditedConfig(const std::string& text, const ConfigEdit& edit) {
  std::vector<std::string> lines = LinesOf(text);
  const size_t dot = edit.key.rfind('.');
  const std::string section = "[" + edit.key.substr(0, dot) + "]", name = edit.key.substr(dot + 1);
  const std::string setting = name + " = " + Toml(edit.value);
  uint64_t at = edit.line;
  if (at > 0) {
    if (at > lines.size()) return InTheWay("line " + std::to_string(at) + " is not there");
    std::string& line = lines[at - 1];
    const size_t equals = line.find('=');
    const std::string_view left =
        Trimmed(std::string_view(line).substr(0, std::min(equals, line.size())));

    std::string rest;
    if (equals == std::string::npos || (left != name && left != edit.key) ||
        !FindRest(std::string_view(line).substr(equals + 1), &rest))
      return InTheWay(line);
    line = line.substr(0, equals + 1) + " " + Toml(edit.value) + rest;
  } else {
    const auto found = std::find_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return Trimmed(std::string_view(line).substr(0, line.find('#'))) == section;
    });

    if (found == lines.end()) {
      if (!lines.empty()) lines.emplace_back();
      lines.push_back(section);
      lines.push_back(setting);
      at = lines.size();
    } else {
      at = static_cast<uint64_t>(found - lines.begin()) + 2;
      lines.insert(found + 1, setting);
    }
  }

  EditedText edited{"", at};
  for (const std::string& line : lines) edited.text += line + "\n";
  return edited;
}

Result<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file)
    return Status(ErrorId::kFileUnreadable, "the file cannot be read")
        .Where(path)
        .Why(std::strerror(errno));
  return text.str();
}

Status ReplaceFile(const std::string& path, const std::string& text) {
  const auto failed = [&](int error) {
    return Status(ErrorId::kFileWriteFailed, "the file cannot be changed")
        .Where(path)
        .Why(std::strerror(error))
        .Fix("run memctl as somebody who may write it, and into its directory");
  };
  char real[PATH_MAX];
  struct stat about {};
  if (realpath(path.c_str(), real) == nullptr || stat(real, &about) != 0) return failed(errno);
  const std::string beside = std::string(real) + ".memctl-XXXXXX";

  std::string name = beside;
  const UniqueFd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return failed(errno);
  const bool written =
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fchmod(file.get(), about.st_mode & 07777) == 0 &&
      (geteuid() != 0 || fchown(file.get(), about.st_uid, about.st_gid) == 0) &&
      fsync(file.get()) == 0 && std::rename(name.c_str(), real) == 0;
  if (written) return Status();

  const int error = errno;
  unlink(name.c_str());
  return failed(error);
}

}  // namespace tidepool::client
