#include "memserver/config_file.h"

#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace tidepool::memserver {

namespace {

std::string Place(const std::string& path, const toml::source_region& region) {
  return path + ":" + std::to_string(region.begin.line);
}

Status Flatten(const toml::table& table, const std::string& prefix, const std::string& path, std::vector<FileSetting>* settings) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string where = Place(path, node.source());
    if (const auto* inner = node.as_table()) {
      TP_RETURN_IF_ERROR(Flatten(*inner, key + ".", path, settings));
    } else if (const auto* text = node.as_string()) {
      settings->push_back({key, text->get(), where});
    } else if (const auto* number = node.as_integer()) {
      settings->push_back({key, std::to_string(number->get()), where});
    } else if (const auto* truth = node.as_boolean()) {
      settings->push_back({key, truth->get() ? "true" : "false", where});
    } else {
      return Status(ErrorId::kConfigBadValue, "the value of " + key + " is neither a string, a whole number nor true or false")
          .Where(where);
    }
  }
  return Status();
}

}  // namespace

Result<std::vector<FileSetting>> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Status(ErrorId::kConfigUnreadable, "the configuration file cannot be read").Where(path).Why(std::strerror(errno));
  }
  std::vector<FileSetting> settings;
  try {
    const toml::table table = toml::parse(text.str(), path);
    TP_RETURN_IF_ERROR(Flatten(table, "", path, &settings));
  } catch (const toml::parse_error& error) {
    return Status(ErrorId::kConfigSyntax, "the configuration file is not valid TOML")
        .Where(Place(path, error.source()) + ", column " + std::to_string(error.source().begin.column))
        .Why(std::string(error.description()));
  }
  return settings;
}

}  // namespace tidepool::memserver
