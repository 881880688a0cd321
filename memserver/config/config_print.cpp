// Prints the configuration as a file: the current values, or the defaults.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/text/json_quote.h"
#include "memserver/config/config.h"

namespace tidepool::memserver {
namespace {

// [[jobs.quota]] tables are not settings, so the file shows one as a comment.
constexpr const char* kQuotaExample =
    "\n# What a user or a job may have is a table of its own; as many as there are "
    "(docs/operations.md):\n"
    "# [[jobs.quota]]\n"
    "# match = \"user:alice\"  # or \"user:1000\", or \"job:NAME\"\n"
    "# guarantee = \"0\"  # of the pool, for nobody else (SIZE|%)\n"
    "# limit = \"100%\"  # of the pool (SIZE|%)\n"
    "# nvme_limit = \"1TiB\"  # on NVMe; \"0\": its jobs stay on the host (SIZE; default: no "
    "limit)\n"
    "# weight = 1  # of workers and copies (1 to 100)\n"
    "# priority = \"normal\"  # low, normal or high\n";

std::string Line(const EffectiveSetting& each, const std::string& comment) {
  const std::string_view key = each.setting->key;
  const std::string name(
      key.substr(key.rfind('.') == std::string_view::npos ? 0 : key.rfind('.') + 1));
  // TOML escapes strings as JSON does.
  std::string line = name + " = " + QuoteJson(each.text);
  line.resize(std::max<size_t>(line.size(), 28), ' ');
  return line + "  # " + comment + "\n";
}

// Keys without a table come first, as TOML requires; otherwise the order is that of the table.
std::string PrintFile(const std::vector<EffectiveSetting>& effective,
                      const std::function<std::string(const EffectiveSetting&)>& comment) {
  std::string top, tables, table_now;
  for (const EffectiveSetting& each : effective) {
    const size_t dot = each.setting->key.find('.');
    if (dot == std::string_view::npos) {
      top += Line(each, comment(each));
      continue;
    }

    const std::string table(each.setting->key.substr(0, dot));
    if (table != table_now) tables += "\n[" + table + "]\n";
    table_now = table;
    tables += Line(each, comment(each));
  }
  return top + tables;
}

}  // namespace

std::string PrintDefaults() {
  std::vector<EffectiveSetting> defaults;
  for (const Setting& setting : Settings())
    defaults.push_back({&setting, std::string(setting.fallback), "default"});

  return "# memserver.toml: every key has a default; these are the defaults.\n"
         "# A flag wins over the environment, the environment over this file.\n\n" +
         PrintFile(defaults,
                   [](const EffectiveSetting& each) {
                     return std::string(each.setting->description) + " (" +
                            std::string(each.setting->value_kind) + ")";
                   }) +
         kQuotaExample;
}

std::string PrintEffective(const LoadedConfig& loaded) {
  return PrintFile(loaded.settings, [](const EffectiveSetting& each) { return each.origin; }) +
         PrintQuotas(loaded.config.quota.entries);
}

}  // namespace tidepool::memserver
