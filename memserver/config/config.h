// Config: every setting of memserver, with its value, its unit and where it came from (flag >
// environment > file > default).
//
// One thread, before the server starts. Settings are one table in setting_table.cpp: a setting added there
// has a flag, an environment variable, a key of the configuration file, a default, a line in --help
// and a line in `memserver config` at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "device/places.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/traffic/nvme_tier.h"
#include "memserver/config/quota_config.h"
#include "memserver/traffic/gpu.h"
#include "optim/kernels/isa.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

inline constexpr uint32_t kAutomatic = UINT32_MAX;  // of a count: chosen by the number of CPUs

enum class GpuUse { kNone, kWhenUsed, kAtStart };

struct Config {
  std::string socket_dir;  // empty: shm::DefaultSocketDir()
  // A size, or a share of the memory that is available; Resolve with ParseSizeOrShare.
  std::string pool;
  std::string rcache_limit;  // likewise
  bool huge_pages = true;
  bool reserved_pages = false;        // huge pages that the administrator has set aside
  std::string topology_file;          // empty: this machine
  std::vector<uint32_t> pool_nodes;   // none: by the rules of device/places.h
  std::vector<uint32_t> worker_cpus;  // likewise
  device::PoolSpread pool_spread = device::PoolSpread::kInterleave;
  uint32_t adam_threads = kAutomatic;
  optim::IsaLevel isa = optim::IsaLevel::kV2;
  std::optional<optim::Tuning> tuning;  // none: measured at start
  uint32_t copy_threads = kAutomatic;   // 0: the serve loop copies
  GpuUse gpus = GpuUse::kAtStart;
  std::optional<DoneBy> gpu_done;  // none: measured when a GPU is opened
  int64_t lease_ns = 0;
  int64_t spin_ns = -1;  // negative: automatic
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kAuto;
  uint32_t jobs_max = 0, sessions_max = 0;
  bool is_service = false;            // else private
  std::string group, operator_group;  // for service mode: names or numbers
  uint32_t user_sessions_max = kAutomatic;
  uint32_t user_jobs_max = kAutomatic;
  std::string metrics_listen;  // host:port; empty: none
  // Limit of each user without a quota: a size or a share of the pool.
  std::string default_quota;
  std::vector<QuotaEntry> quotas;  // from the file only
  KeeperChoice keeper = KeeperChoice::kAuto;
  bool respawn = true;
  NvmeOptions nvme;
  StatesOn states_on = StatesOn::kAuto;
};

struct Setting {
  std::string_view flag;         // "--pool"
  std::string_view key;          // "pool.size" in the file
  std::string_view value_kind;   // for help: "SIZE|%"
  std::string_view fallback;     // the default
  std::string_view description;  // one line
  Status (*parse)(const std::string& text, Config* config);
  bool is_live = false;  // a reload may change it
};

std::span<const Setting> Settings();
// "TIDEPOOL_POOL" of "--pool".
std::string EnvironmentNameOf(const Setting& setting);

// The value that holds, and whence: "default", "/etc/x.toml:3", "TIDEPOOL_POOL", "--pool".
struct EffectiveSetting {
  const Setting* setting = nullptr;
  std::string text;
  std::string origin;
};

struct LoadedConfig {
  std::string file;  // empty: none
  Config config;
  std::vector<EffectiveSetting> settings;  // in the order of Settings()
};

struct ConfigSources {
  std::string file;                          // empty: none
  std::map<std::string, std::string> flags;  // "--pool" -> "4GiB"
  // The environment; empty strings count as unset.
  std::function<std::string(const std::string& name)> environment;
};

// Errors: kConfigUnreadable, kConfigSyntax, kConfigUnknownKey, kConfigBadValue; each names its
// place.
Result<LoadedConfig> LoadConfig(const ConfigSources& sources);

// A complete, commented configuration file: with the defaults, or with the values that hold and
// their origins.
std::string PrintDefaults();
// Every setting that there is, as JSON: its key, flag, variable, kind, default and meaning, and
// whether a reload may change it.
std::string ConfigSchema();
std::string PrintEffective(const LoadedConfig& loaded);

}  // namespace tidepool::memserver
