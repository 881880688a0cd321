// Topology: which CPUs, memory, GPUs and NVMe drives of a machine lie near each other; of this
// machine, or of one described in a file.
//
// Any thread; a value. topology.cpp is the one door to hwloc. Reading this machine takes about 10
// ms if it has GPUs or NVMe drives, else 1 ms, and a file less than that. A topology of this
// machine holds only what the process may use: CPUs by its affinity, memory by its cpuset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::device {

// One CPU, as the system numbers it.
struct Cpu {
  uint32_t id = 0;    // of the system
  uint32_t core = 0;  // CPUs of one core share its arithmetic units: one worker per core is enough
};

// Memory and the CPUs next to it.
struct NumaNode {
  uint32_t id = 0;  // of the system
  uint64_t memory_bytes = 0;
  std::vector<Cpu> cpus;  // ascending; none on a memory-only node
};

// The kinds of peripherals that transfer data.
enum class PeripheralKind { kGpu, kNvme };
// "gpu", "nvme".
const char* NameOf(PeripheralKind kind);

// A GPU or a drive on the PCI bus.
struct Peripheral {
  PeripheralKind kind = PeripheralKind::kGpu;
  std::string name;     // "nvme0n1", "cuda0"; else its name in the PCI list
  std::string address;  // "0000:17:00.0"
};

// The devices that share one path between PCIe and memory: transfers of one root complex slow each
// other down.
struct RootComplex {
  std::string name;              // "pci0000:17"
  std::optional<uint32_t> node;  // the nearest NUMA node; none if unknown
  std::vector<Peripheral> peripherals;
};

struct Topology {
  std::string source;              // "this machine", or the file
  std::vector<NumaNode> nodes;     // ascending, at least one
  std::vector<RootComplex> roots;  // only those with a GPU or an NVMe drive
  // The node with this number, or with this CPU; null if there is none.
  const NumaNode* Find(uint32_t node) const;
  const NumaNode* NodeOfCpu(uint32_t cpu) const;
};

// Reads this machine. Errors: kInternal (hwloc cannot read it).
Result<Topology> ReadTopology();
// Reads a file in hwloc's XML form (`lstopo --of xml`). Errors: kConfigUnreadable.
Result<Topology> ReadTopologyFile(const std::string& path);

}  // namespace tidepool::device
