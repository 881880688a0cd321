#include "memserver/jobs/commands/admin_settings.h"

#include <utility>

#include "base/hot.h"

namespace tidepool::memserver {

void AdminSettings::Apply(const LiveSettings& live, std::shared_ptr<const ConfigRows> config) {
  if (live.log_level != live_.log_level && log_level_until_ns_ == 0) SetLogLevel(live.log_level);
  live_ = live;
  config_ = std::move(config);
}

void AdminSettings::ChangeLogLevel(LogLevel level, int64_t until_ns) {
  SetLogLevel(level);
  log_level_until_ns_ = until_ns;
}

TP_HOT bool AdminSettings::PollLogLevel(int64_t now_ns) {
  if (log_level_until_ns_ == 0 || now_ns < log_level_until_ns_) return false;
  log_level_until_ns_ = 0;
  SetLogLevel(live_.log_level);
  return true;
}

void AdminSettings::SetMute(const std::string& code, int64_t until_ns, int64_t now_ns) {
  std::erase_if(mutes_,
                [&](const Mute& mute) { return mute.code == code || mute.until_ns <= now_ns; });
  if (until_ns > now_ns) mutes_.push_back({code, until_ns});
}

}  // namespace tidepool::memserver
