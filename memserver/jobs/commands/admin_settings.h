// AdminSettings: what admins may change while memserver serves, as it is now: the settings that a
// reload applies, whether new jobs are taken, muted checks of health, and the level of the log.
//
// One thread (the serve loop). AdminCommands changes it; everybody else reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "memserver/control/mailbox.h"

namespace tidepool::memserver {

// A check of health that an admin has muted.
struct Mute {
  std::string code;
  int64_t until_ns = 0;
};

class AdminSettings {
 public:
  // As configured.
  AdminSettings(const LiveSettings& live, std::shared_ptr<const ConfigRows> config)
      : live_(live), config_(std::move(config)) {}

  const LiveSettings& live() const { return live_; }
  // For people: what /v1/config shows.
  const std::shared_ptr<const ConfigRows>& config() const { return config_; }
  // Closed by an admin: no new jobs are taken.
  bool closed() const { return closed_; }
  // One a check at most; those whose time is over count for nothing.
  const std::vector<Mute>& mutes() const { return mutes_; }
  // When the configured level of the log comes back; 0: it holds.
  int64_t log_level_until_ns() const { return log_level_until_ns_; }

  // Closes the server for new jobs, or opens it again.
  void SetClosed(bool closed) { closed_ = closed; }
  // A log level that was set for a time ends by itself, and then the one in `live` holds.
  void Apply(const LiveSettings& live, std::shared_ptr<const ConfigRows> config);
  // `until_ns` 0: for good.
  void ChangeLogLevel(LogLevel level, int64_t until_ns);
  // Brings the configured level back when its time has come. True when it did.
  bool PollLogLevel(int64_t now_ns);
  // A time that is not after `now_ns` ends the mute.
  void SetMute(const std::string& code, int64_t until_ns, int64_t now_ns);

 private:
  LiveSettings live_;
  std::shared_ptr<const ConfigRows> config_;
  bool closed_ = false;
  std::vector<Mute> mutes_;
  int64_t log_level_until_ns_ = 0;
};

}  // namespace tidepool::memserver
