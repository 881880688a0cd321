// What is read out of this machine and out of machines described by hand: two sockets with GPUs and
// NVMe drives on root complexes of their own, and a board that does not say what lies near what.
#include "device/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/units.h"

namespace tidepool::device {
namespace topology_test {

using ::testing::ElementsAre;

Topology Described(const std::string& name) {
  auto topology = ReadTopologyFile(std::string(TIDEPOOL_TOPOLOGIES) + "/" + name);
  EXPECT_TRUE(topology.ok()) << topology.status().Format();
  return topology.ok() ? *topology : Topology{.source = "", .nodes = {NumaNode{}}, .roots = {}};
}

std::vector<uint32_t> CpusOf(const NumaNode& node) {
  std::vector<uint32_t> cpus;
  for (const Cpu& cpu : node.cpus) cpus.push_back(cpu.id);
  return cpus;
}

TEST(Topology, TwoSocketsHaveTheirCpusMemoryAndRootComplexes) {
  const Topology machine = Described("two_sockets.xml");
  ASSERT_EQ(machine.nodes.size(), 2u);
  EXPECT_EQ(machine.nodes[0].memory_bytes, 512 * kGiB);
  EXPECT_THAT(CpusOf(machine.nodes[0]), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(CpusOf(machine.nodes[1]), ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
  EXPECT_EQ(machine.nodes[1].cpus[0].core, machine.nodes[1].cpus[4].core)
      << "4 and 12 share a core";
  EXPECT_EQ(machine.NodeOfCpu(12), &machine.nodes[1]);
  EXPECT_EQ(machine.NodeOfCpu(99), nullptr);

  ASSERT_EQ(machine.roots.size(), 4u)
      << "the management controller's display is no GPU, so its root complex is left out";
  const RootComplex& first = machine.roots[0];
  EXPECT_EQ(first.name, "pci0000:15");
  EXPECT_EQ(first.node, 0u);
  ASSERT_EQ(first.peripherals.size(), 2u);
  EXPECT_EQ(first.peripherals[0].kind, PeripheralKind::kGpu);
  EXPECT_EQ(first.peripherals[0].address, "0000:16:00.0");
  EXPECT_EQ(first.peripherals[0].name, "NVIDIA H200");
  EXPECT_EQ(first.peripherals[1].kind, PeripheralKind::kNvme);
  EXPECT_EQ(first.peripherals[1].name, "nvme0n1");
  EXPECT_EQ(machine.roots[3].name, "pci0000:b7");
  EXPECT_EQ(machine.roots[3].node, 1u);
}

TEST(Topology, ABoardThatDoesNotSayWhatIsNearIsNotGuessedAt) {
  const Topology machine = Described("silent_board.xml");
  ASSERT_EQ(machine.nodes.size(), 3u);
  EXPECT_TRUE(machine.nodes[2].cpus.empty()) << "memory alone";
  ASSERT_EQ(machine.roots.size(), 2u);
  for (const RootComplex& root : machine.roots) EXPECT_EQ(root.node, std::nullopt) << root.name;
}

TEST(Topology, ThisMachineHasTheCpusOfThisProcess) {
  auto machine = ReadTopology();
  ASSERT_TRUE(machine.ok()) << machine.status().Format();
  ASSERT_FALSE(machine->nodes.empty());
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpus = 0;
  for (const NumaNode& node : machine->nodes) {
    for (const Cpu& cpu : node.cpus) EXPECT_TRUE(CPU_ISSET(cpu.id, &allowed)) << cpu.id;
    cpus += static_cast<int>(node.cpus.size());
  }
  EXPECT_EQ(cpus, CPU_COUNT(&allowed));
}

TEST(Topology, ThisMachineHasTheGpusAndDrivesOfItsPciList) {
  size_t listed = 0, found = 0;
  std::error_code no_pci;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", no_pci)) {
    std::string class_id;
    std::ifstream(device.path() / "class") >> class_id;
    listed += class_id.starts_with("0x0108") || class_id.starts_with("0x0302") ? 1 : 0;
  }
  auto machine = ReadTopology();
  ASSERT_TRUE(machine.ok()) << machine.status().Format();
  for (const RootComplex& root : machine->roots) found += root.peripherals.size();
  EXPECT_GE(found, listed);  // some GPUs are displays
}

TEST(Topology, AFileThatIsNoneIsNamed) {
  const auto none = ReadTopologyFile("/nowhere/topology.xml");
  EXPECT_EQ(none.status().id(), ErrorId::kConfigUnreadable);
  EXPECT_EQ(none.status().where(), "/nowhere/topology.xml");
  const std::string path =
      (std::filesystem::temp_directory_path() / "tidepool-not-a-topology.xml").string();
  std::ofstream(path) << "<topology version=\"2.0\"><object type=\"Mach";
  EXPECT_EQ(ReadTopologyFile(path).status().id(), ErrorId::kConfigUnreadable);
  std::filesystem::remove(path);
}

}  // namespace topology_test
}  // namespace tidepool::device
