// Hostile neighbours for bench_neighbour: each is a process that does one bad thing to a memserver,
// without end.
//
// RunHostile belongs to the process that is one (the benchmark's own program, started once more);
// it returns only on an error of this program.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "base/clock.h"
#include "base/units.h"

namespace tidepool::bench {

// Where it is done.
struct Scene {
  std::string socket_dir;
  std::string drive;  // a directory
};

// One kind of neighbour.
struct Hostile {
  const char* name;    // of --hostile
  const char* what;    // for the row
  uint32_t processes;  // that do it at once
  void (*run)(const Scene& scene);
  // Does nothing to memserver: its rows say what the machine costs, and have no target.
  bool is_bystander = false;
  bool same_round = false;            // measured in the rounds of the one before it
  int64_t begin_ns = 300 * kNsPerMs;  // until it is at work
};
// All kinds.
std::span<const Hostile> Hostiles();

// The job that `nvme` trains: its quota must let it have states on NVMe alone.
inline constexpr const char* kNvmeHogName = "nvme-hog";
// Bytes of states that the jobs of the neighbours take from pool and NVMe.
uint64_t HogPoolBytes();
uint64_t HogNvmeBytes();

[[noreturn]] void RunHostile(const std::string& name, const Scene& scene);

// The processes of one neighbour; killed with this object.
class HostileProcesses {
 public:
  HostileProcesses(const Hostile& hostile, const Scene& scene);
  ~HostileProcesses();
  HostileProcesses(const HostileProcesses&) = delete;
  HostileProcesses& operator=(const HostileProcesses&) = delete;

 private:
  pid_t group_ = 0;
};

}  // namespace tidepool::bench
