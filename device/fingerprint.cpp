#include "device/fingerprint.h"

#include <sched.h>

#include <cstdint>
#include <fstream>
#include <map>

#include "base/units.h"
#include "device/gpu_list.h"

namespace tidepool::device {
namespace {

// The value of the first line "name : value"; empty if there is none.
std::string FirstLine(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

uint32_t OwnCpus() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? static_cast<uint32_t>(CPU_COUNT(&cpus))
                                                        : 0;
}

uint64_t MemoryGiB(const std::string& proc_root) {
  const std::string kib = FirstLine(proc_root + "/meminfo", "MemTotal");
  const uint64_t bytes = kib.empty() ? 0 : std::strtoull(kib.c_str(), nullptr, 10) * kKiB;
  return (bytes + kGiB / 2) / kGiB;
}

// "2 x NVIDIA H200", or "no GPU".
std::string GpusText() {
  const auto gpus = ListGpus();
  if (!gpus.ok()) return "no GPU";
  std::map<std::string, int> counts;
  for (const Gpu& gpu : gpus.value()) ++counts[gpu.name];
  std::string text;
  for (const auto& [name, count] : counts)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " x " + name;
  return text;
}

}  // namespace

std::string MachineFingerprint(const std::string& proc_root) {
  const std::string model = FirstLine(proc_root + "/cpuinfo", "model name");
  return (model.empty() ? std::string("processor unknown") : model) + ", " +
         std::to_string(OwnCpus()) + " CPUs, " + std::to_string(MemoryGiB(proc_root)) + " GiB, " +
         GpusText();
}

}  // namespace tidepool::device
