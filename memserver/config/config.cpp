#include "memserver/config/config.h"

#include <algorithm>
#include <utility>

#include "base/text/suggest.h"
#include "base/formats/toml_file.h"

namespace tidepool::memserver {

namespace {

Status UnknownKey(const FileSetting& entry) {
  std::vector<std::string_view> known;
  for (const Setting& setting : Settings()) known.push_back(setting.key);
  return Status(ErrorId::kConfigUnknownKey,
                "the key \"" + entry.key + "\" is not known" + DidYouMean(entry.key, known))
      .Where(entry.where);
}

Status TakeFile(const std::string& path, std::vector<EffectiveSetting>* effective,
                std::vector<QuotaEntry>* quotas) {
  TP_ASSIGN_OR_RETURN(const std::vector<FileSetting> entries, ReadTomlFile(path));
  std::vector<FileSetting> of_quotas;
  for (const FileSetting& entry : entries) {
    if (IsQuotaKey(entry.key)) {
      of_quotas.push_back(entry);
      continue;
    }

    const auto found = std::find_if(effective->begin(), effective->end(), [&](const auto& each) {
      return each.setting->key == entry.key;
    });
    if (found == effective->end()) return UnknownKey(entry);
    found->text = entry.text;
    found->origin = entry.where;
  }
  TP_ASSIGN_OR_RETURN(*quotas, ReadQuotas(of_quotas));
  return Status();
}

std::vector<EffectiveSetting> Defaults() {
  std::vector<EffectiveSetting> effective;
  for (const Setting& setting : Settings())
    effective.push_back({&setting, std::string(setting.fallback), "default"});
  return effective;
}

}  // namespace

std::string EnvironmentNameOf(const Setting& setting) {
  std::string name = "TIDEPOOL_" + std::string(setting.flag.substr(2));
  for (char& c : name)
    c = c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

Result<LoadedConfig> LoadConfig(const ConfigSources& sources) {
  LoadedConfig loaded;
  loaded.file = sources.file;
  loaded.settings = Defaults();
  if (!sources.file.empty())
    TP_RETURN_IF_ERROR(TakeFile(sources.file, &loaded.settings, &loaded.config.quota.entries));

  for (EffectiveSetting& each : loaded.settings) {
    const std::string name = EnvironmentNameOf(*each.setting);
    if (const std::string text = sources.environment ? sources.environment(name) : "";
        !text.empty()) {
      each.text = text;
      each.origin = name;
    }
    if (const auto flag = sources.flags.find(std::string(each.setting->flag));
        flag != sources.flags.end()) {
      each.text = flag->second;
      each.origin = flag->first;
    }

    const Status parsed = each.setting->parse(each.text, &loaded.config);
    if (!parsed.ok()) {
      return Status(ErrorId::kConfigBadValue, parsed.what())
          .Where(each.origin + "  " + std::string(each.setting->key) + " = \"" + each.text + "\"")
          .Why(parsed.why().empty() ? "the form is " + std::string(each.setting->value_kind)
                                    : parsed.why());
    }
  }
  return loaded;
}

}  // namespace tidepool::memserver
