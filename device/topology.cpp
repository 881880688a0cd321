#include "device/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

namespace tidepool::device {
namespace {

using Handle = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

using PciFacts = decltype(hwloc_obj_attr_u::pcidev);

constexpr uint16_t kClassNvme = 0x0108, kClassAccelerator = 0x0302, kBaseClassDisplay = 0x03;
constexpr uint16_t kVendorNvidia = 0x10de, kVendorAmd = 0x1002;

std::optional<PeripheralKind> KindOf(uint16_t class_id, uint16_t vendor_id) {
  if (class_id == kClassNvme) return PeripheralKind::kNvme;
  // The display of a management controller is not a GPU.
  const bool display = class_id >> 8 == kBaseClassDisplay;
  const bool gpu = class_id == kClassAccelerator ||
                   (display && (vendor_id == kVendorNvidia || vendor_id == kVendorAmd));
  return gpu ? std::optional(PeripheralKind::kGpu) : std::nullopt;
}

uint32_t HexIn(const std::filesystem::path& path) {
  uint32_t value = 0;
  std::ifstream(path) >> std::hex >> value;
  return value;
}

// True if this machine has a GPU or a drive, by two words of each device. hwloc reads all that
// every device reports: on a guest, where the host emulates each read, that is most of a
// memserver's start time.
bool HasPeripherals() {
  std::error_code error;
  for (std::filesystem::directory_iterator at("/sys/bus/pci/devices", error), end;
       !error && at != end; at.increment(error)) {
    const uint32_t class_and_form = HexIn(at->path() / "class");
    if (KindOf(static_cast<uint16_t>(class_and_form >> 8),
               static_cast<uint16_t>(HexIn(at->path() / "vendor"))))
      return true;
  }
  return false;
}

Handle NewHandle() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) topology = nullptr;
  Handle handle(topology, hwloc_topology_destroy);
  if (handle == nullptr) return handle;
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // These plugins start drivers, which takes seconds and memory, or query every CPU individually
  // (x86); their information is not needed.
  for (const char* plugin : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero", "x86"}) {
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  }
  return handle;
}

bool MayUse(const cpu_set_t* allowed, unsigned cpu) {
  return allowed == nullptr || (cpu < CPU_SETSIZE && CPU_ISSET(cpu, allowed));
}

std::vector<NumaNode> NodesOf(hwloc_topology_t topology, const cpu_set_t* allowed) {
  std::vector<NumaNode> nodes;
  const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t object =
        hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    nodes.push_back(
        {.id = object->os_index, .memory_bytes = object->attr->numanode.local_memory, .cpus = {}});
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });

  const int cpus = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
  for (int i = 0; i < cpus; ++i) {
    const hwloc_obj_t cpu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, static_cast<unsigned>(i));
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, cpu);
    // If several nodes lie beside one CPU (fast memory beside plain memory), the first is the plain
    // one.
    const auto home = std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& n) {
      return hwloc_bitmap_isset(cpu->nodeset, n.id);
    });
    if (home == nodes.end() || !MayUse(allowed, cpu->os_index)) continue;
    home->cpus.push_back({cpu->os_index, core == nullptr ? cpu->os_index : core->logical_index});
  }

  for (NumaNode& node : nodes) {
    std::sort(node.cpus.begin(), node.cpus.end(),
              [](const Cpu& a, const Cpu& b) { return a.id < b.id; });
  }
  return nodes;
}

std::string NameOfDevice(hwloc_obj_t device) {
  for (hwloc_obj_t child = device->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type == HWLOC_OBJ_OS_DEVICE && child->name != nullptr) return child->name;
  }
  return device->name == nullptr ? "" : device->name;
}

std::string AddressOf(const PciFacts& pci) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%01x", static_cast<unsigned>(pci.domain),
                static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev),
                static_cast<unsigned>(pci.func));
  return text.data();
}

// The root complex above `device`: the bridge between the machine and PCI; null if the topology has
// none.
hwloc_obj_t RootOf(hwloc_obj_t device) {
  for (hwloc_obj_t at = device->parent; at != nullptr; at = at->parent) {
    if (at->type == HWLOC_OBJ_BRIDGE && at->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
      return at;
  }
  return nullptr;
}

RootComplex RootComplexOf(hwloc_topology_t topology, hwloc_obj_t bridge,
                          const std::vector<NumaNode>& nodes) {
  RootComplex root;
  std::array<char, 32> name{};
  const auto& down = bridge->attr->bridge.downstream.pci;
  std::snprintf(name.data(), name.size(), "pci%04x:%02x", static_cast<unsigned>(down.domain),
                static_cast<unsigned>(down.secondary_bus));
  root.name = name.data();
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, bridge);
  const auto beside = [&](const NumaNode& node) {
    return near != nullptr && hwloc_bitmap_isset(near->nodeset, node.id) != 0;
  };
  // If it lies beside several nodes with CPUs, none is the nearest: the machine does not say.
  const auto has_cpus = [&](const NumaNode& node) { return beside(node) && !node.cpus.empty(); };
  const auto first = std::find_if(nodes.begin(), nodes.end(), beside);
  if (first != nodes.end() && std::count_if(nodes.begin(), nodes.end(), has_cpus) <= 1)
    root.node = first->id;
  return root;
}

std::vector<RootComplex> RootsOf(hwloc_topology_t topology, const std::vector<NumaNode>& nodes) {
  std::vector<RootComplex> roots;
  std::vector<hwloc_obj_t> bridges;
  for (hwloc_obj_t device = nullptr;
       (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    const auto kind = KindOf(device->attr->pcidev.class_id, device->attr->pcidev.vendor_id);
    const hwloc_obj_t bridge = RootOf(device);
    if (!kind || bridge == nullptr) continue;

    const auto known = std::find(bridges.begin(), bridges.end(), bridge);
    const auto at = static_cast<size_t>(known - bridges.begin());
    if (known == bridges.end()) {
      bridges.push_back(bridge);
      roots.push_back(RootComplexOf(topology, bridge, nodes));
    }
    roots[at].peripherals.push_back({*kind, NameOfDevice(device), AddressOf(device->attr->pcidev)});
  }
  return roots;
}

}  // namespace

const char* NameOf(PeripheralKind kind) {
  return kind == PeripheralKind::kGpu ? "gpu" : "nvme";
}

const NumaNode* Topology::Find(uint32_t node) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(),
                                  [node](const NumaNode& each) { return each.id == node; });
  return found == nodes.end() ? nullptr : &*found;
}

const NumaNode* Topology::NodeOfCpu(uint32_t cpu) const {
  for (const NumaNode& node : nodes) {
    for (const Cpu& each : node.cpus) {
      if (each.id == cpu) return &node;
    }
  }
  return nullptr;
}

Result<Topology> ReadTopology() {
  const Handle handle = NewHandle();
  if (handle != nullptr && !HasPeripherals())
    hwloc_topology_set_io_types_filter(handle.get(), HWLOC_TYPE_FILTER_KEEP_NONE);
  if (handle == nullptr || hwloc_topology_load(handle.get()) != 0) {
    return Status(ErrorId::kInternal, "the topology of this machine cannot be read");
  }

  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  Topology topology{.source = "this machine",
                    .nodes = NodesOf(handle.get(), known ? &allowed : nullptr),
                    .roots = {}};
  topology.roots = RootsOf(handle.get(), topology.nodes);
  return topology;
}

Result<Topology> ReadTopologyFile(const std::string& path) {
  const Handle handle = NewHandle();
  const bool loaded = handle != nullptr &&
                      hwloc_topology_set_xml(handle.get(), path.c_str()) == 0 &&
                      hwloc_topology_load(handle.get()) == 0;
  if (!loaded) {
    return Status(ErrorId::kConfigUnreadable, "the topology cannot be read")
        .Where(path)
        .Why("it must be a file in the XML form of hwloc 2")
        .Fix("make one with `lstopo --of xml FILE` on the machine in question");
  }

  Topology topology{.source = path, .nodes = NodesOf(handle.get(), nullptr), .roots = {}};
  topology.roots = RootsOf(handle.get(), topology.nodes);
  if (topology.nodes.empty())
    return Status(ErrorId::kConfigUnreadable, "the topology has no NUMA node").Where(path);
  return topology;
}

}  // namespace tidepool::device
