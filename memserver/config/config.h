// Config: every setting of memserver, in groups, with its unit and the origin of its value (flag >
// environment > file > default).
//
// One thread, before the server starts. A setting is a member of one group, which is passed as a
// whole to its readers, and a row of the table in setting_table.cpp: its flag, environment
// variable, key of the configuration file, default, line in --help and line in `memserver config`.
// Groups that lower rooms read are declared there: memserver/residency/settings.h and NvmeOptions.
// The table fills every member; the initial values suit a server inside a test: one worker, nothing
// measured.
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
#include "memserver/config/quota_config.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/residency/settings.h"
#include "memserver/traffic/gpu.h"
#include "memserver/traffic/nvme_tier.h"
#include "optim/kernels/isa.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

// The memory for all jobs, and its placement.
struct PoolSettings {
  std::string size;        // bytes, or a share of what is available at start (ParseSizeOrShare)
  bool huge_pages = true;  // ask the system for pages of 2 MiB
  bool reserved_pages = false;  // use those reserved by the administrator
  std::vector<uint32_t> nodes;  // NUMA nodes; none: by the rules of device/places.h
  device::PoolSpread spread = device::PoolSpread::kInterleave;
};

// The workers that update parameters.
struct OptimizerSettings {
  uint32_t threads = 1;        // kAutomatic until memserver starts
  std::vector<uint32_t> cpus;  // the workers' CPUs; none: by the rules of device/places.h
  optim::IsaLevel isa = optim::BestIsa();
  std::optional<optim::Tuning> tuning = optim::Tuning{};  // none: measured at start
};

// The threads that copy between pool and rCaches.
struct CopySettings {
  // 0: the serve loop copies; else one thread per session, and this many together for a large
  // range. kAutomatic until memserver starts.
  uint32_t threads = 0;
  bool together = false;  // even if measured not to be worth it, because a number was given
};

// When GPUs are opened (--gpu).
enum class GpuUse { kNone, kWhenUsed, kAtStart };

// The GPUs whose memory trainers may bring.
struct GpuSettings {
  GpuUse use = GpuUse::kWhenUsed;
  std::optional<DoneBy> done;  // none: measured when a GPU is opened
};

// What holds the jobs' memory while memserver is gone.
struct KeeperSettings {
  KeeperChoice kind = KeeperChoice::kAuto;
  bool respawn = true;  // the keeper process starts memserver again after a crash
};

// Who may connect, and where metrics are served.
struct AccessSettings {
  bool is_service = false;                      // else private
  std::string group = {}, operator_group = {};  // of service mode: names or numbers
  std::string metrics_listen = {};              // host:port of the loopback; empty: none
};

// What users and jobs may take of the pool.
struct QuotaSettings {
  std::string fallback = "100%";         // of users without an entry: a size or a share
  std::vector<QuotaEntry> entries = {};  // from the file only
};

struct Config {
  std::string socket_dir;     // empty until memserver starts: shm::DefaultSocketDir()
  std::string topology_file;  // empty: this machine
  std::string rcache_limit;   // of all ranks on the host: bytes, or a share as in PoolSettings
  PoolSettings pool;
  OptimizerSettings optimizer;
  CopySettings copy;
  GpuSettings gpu;
  NvmeOptions nvme;
  LimitSettings limits;
  TimeSettings times;
  LiveSettings live;
  QuotaSettings quota;
  AccessSettings admin;
  KeeperSettings keeper;
  bool measure_rates = true;  // when the machine has nothing else to do
  LogFormat log_format = LogFormat::kAuto;
};

// One row of the table.
struct Setting {
  std::string_view flag;         // "--pool"
  std::string_view key;          // "pool.size" in the file
  std::string_view value_kind;   // for help: "SIZE|%"
  std::string_view fallback;     // the default
  std::string_view description;  // one line
  Status (*parse)(const std::string& text, Config* config);
  bool is_live = false;  // a reload may change it
};

// The table, in --help order.
std::span<const Setting> Settings();
// The environment variable of a setting: "TIDEPOOL_POOL" for "--pool".
std::string EnvironmentNameOf(const Setting& setting);

// A setting's value and its origin: "default", "/etc/x.toml:3", "TIDEPOOL_POOL", "--pool".
struct EffectiveSetting {
  const Setting* setting = nullptr;
  std::string text;
  std::string origin;
};

// The loaded settings, as values and as text.
struct LoadedConfig {
  std::string file;  // empty: none
  Config config;
  std::vector<EffectiveSetting> settings;  // in the order of Settings()
};

// Where settings are read from; a reload reads the same sources again.
struct ConfigSources {
  std::string file;                          // empty: none
  std::map<std::string, std::string> flags;  // "--pool" -> "4GiB"
  // The environment; empty strings count as unset.
  std::function<std::string(const std::string& name)> environment;
};

// Loads the configuration. Errors: kConfigUnreadable, kConfigSyntax, kConfigUnknownKey,
// kConfigBadValue; each names its place.
Result<LoadedConfig> LoadConfig(const ConfigSources& sources);

// A complete, commented configuration file: with the defaults, or with the current values and their
// origins.
std::string PrintDefaults();
std::string PrintEffective(const LoadedConfig& loaded);
// Every setting as JSON: its key, flag, variable, kind, default and meaning, and whether a reload
// may change it.
std::string ConfigSchema();

}  // namespace tidepool::memserver
