// AdminSettings: the current values of what admins may change while memserver serves: the settings
// that a reload applies, whether new jobs are taken, muted health checks, and the log level.
//
// One thread (the serve loop). AdminCommands changes it; all others only read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "memserver/control/mailbox.h"

namespace tidepool::memserver {

// A health check that an admin has muted.
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
  // What /v1/config shows, for people.
  const std::shared_ptr<const ConfigRows>& config() const { return config_; }
  // Closed by an admin: no new jobs are taken.
  bool closed() const { return closed_; }
  // At most one per check; expired ones have no effect.
  const std::vector<Mute>& mutes() const { return mutes_; }
  // When the configured log level comes back; 0: the level stays.
  int64_t log_level_until_ns() const { return log_level_until_ns_; }

  // Closes the server for new jobs, or opens it again.
  void SetClosed(bool closed) { closed_ = closed; }
  // A log level that was set for a time expires by itself, and then the one in `live` holds.
  void Apply(const LiveSettings& live, std::shared_ptr<const ConfigRows> config);
  // Changes the log level until `until_ns`; 0: for good.
  void ChangeLogLevel(LogLevel level, int64_t until_ns);
  // Restores the configured level when its time has come. True when it did.
  bool PollLogLevel(int64_t now_ns);
  // Mutes a check. A time that is not after `now_ns` ends the mute.
  void SetMute(const std::string& code, int64_t until_ns, int64_t now_ns);

 private:
  LiveSettings live_;
  std::shared_ptr<const ConfigRows> config_;
  bool closed_ = false;
  std::vector<Mute> mutes_;
  int64_t log_level_until_ns_ = 0;
};

}  // namespace tidepool::memserver
