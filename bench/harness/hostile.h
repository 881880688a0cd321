// Hostile neighbours for bench_neighbour: each is a process that keeps doing one bad thing to a
// memserver.
//
// RunHostile runs in the neighbour's process (the benchmark's own program, started again); it
// returns only on an error of this program.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "base/clock.h"
#include "base/units.h"

namespace tidepool::bench {

// Where a neighbour runs.
struct Scene {
  std::string socket_dir;
  std::string drive;  // a directory
};

// One kind of neighbour.
struct Hostile {
  const char* name;    // value of --hostile
  const char* what;    // description, for the row
  uint32_t processes;  // number of concurrent processes
  void (*run)(const Scene& scene);
  // Does nothing to memserver: its rows show the machine's cost, and have no target.
  bool is_bystander = false;
  bool same_round = false;            // measured in the same rounds as the previous one
  int64_t begin_ns = 300 * kNsPerMs;  // time to get to work
};
// All kinds.
std::span<const Hostile> Hostiles();

// The job that `nvme` trains: its quota must allow states on NVMe only.
inline constexpr const char* kNvmeHogName = "nvme-hog";
// Bytes of states that the neighbours' jobs take from pool and NVMe.
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
