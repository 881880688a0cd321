// The answer of /v1/config/schema.
#include "base/text/json_writer.h"
#include "memserver/config/config.h"

namespace tidepool::memserver {

std::string ConfigSchema() {
  JsonWriter json;
  json.BeginObject().Key("settings").BeginArray();
  for (const Setting& setting : Settings()) {
    json.BeginObject()
        .Field("key", setting.key)
        .Field("flag", setting.flag)
        .Field("environment", EnvironmentNameOf(setting));

    json.Field("kind", setting.value_kind)
        .Field("default", setting.fallback)
        .Field("description", setting.description);
    json.Field("reloads", setting.is_live).EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace tidepool::memserver
