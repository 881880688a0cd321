#include "memserver/residency/pool/pool_pages.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace tidepool::memserver {
namespace {

// MFD_HUGE_2MB: the binary logarithm of the size, shifted.
constexpr unsigned kPagesOf2MiB = 21U << 26;
constexpr uint32_t kNodesMax = 1024;
constexpr uint64_t kSamples = 64;
constexpr const char* kReservedDirectory = "/sys/kernel/mm/hugepages/hugepages-2048kB/";

uint64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : 0;
}

}  // namespace

UniqueFd CreatePoolFile(bool reserved) {
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (reserved ? MFD_HUGETLB | kPagesOf2MiB : 0U);
  UniqueFd fd(memfd_create("tidepool-pool", flags | MFD_NOEXEC_SEAL));
  if (!fd.valid()) fd = UniqueFd(memfd_create("tidepool-pool", flags));  // before Linux 6.3
  return fd;
}

uint64_t ReservedHugeBytes() {
  const std::string directory = kReservedDirectory;
  const uint64_t free = ReadNumber(directory + "free_hugepages"),
                 promised = ReadNumber(directory + "resv_hugepages");
  return (free - std::min(free, promised)) * kHugePageBytes;
}

Status BindPages(std::byte* data, uint64_t bytes, std::span<const uint32_t> nodes) {
  constexpr uint32_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kNodesMax / kBits> mask{};
  for (const uint32_t node : nodes) {
    if (node < kNodesMax) mask[node / kBits] |= 1UL << (node % kBits);
  }

  const int mode = nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  if (syscall(SYS_mbind, data, bytes, mode, mask.data(), static_cast<unsigned long>(kNodesMax),
              0U) == 0)
    return Status();
  return Status(ErrorId::kMemoryMapFailed, "memory cannot be bound to NUMA nodes")
      .Why(std::strerror(errno));
}

Status TouchPages(std::byte* data, uint64_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return Status();
  if (errno != EINVAL) {
    return Status(ErrorId::kMemoryMapFailed,
                  "touching " + FormatBytes(bytes) + " of the host pool failed")
        .Why(std::strerror(errno));
  }
  // Before Linux 5.14 there is no MADV_POPULATE_WRITE: write a zero to each page of the zeroed
  // file.
  for (uint64_t at = 0; at < bytes; at += kPageBytes)
    *reinterpret_cast<volatile char*>(data + at) = 0;
  return Status();
}

uint64_t HugePageBytes(const std::byte* data, uint64_t bytes) {
  if (bytes < kHugePageBytes) return 0;
  std::ifstream smaps("/proc/self/smaps");
  const auto first = reinterpret_cast<uint64_t>(data);
  bool inside = false;
  uint64_t sum = 0;
  std::string line;
  while (std::getline(smaps, line)) {
    unsigned long long low = 0, high = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &low, &high) == 2)
      inside = low >= first && low < first + bytes;
    if (!inside) continue;
    // The first two count transparent huge pages, of shared and of private memory; the others
    // reserved ones.
    for (const char* form : {"ShmemPmdMapped: %llu kB", "AnonHugePages: %llu kB",
                             "Shared_Hugetlb: %llu kB", "Private_Hugetlb: %llu kB"}) {
      if (std::sscanf(line.c_str(), form, &kib) == 1) sum += kib * kKiB;
    }
  }
  return sum;
}

std::vector<NodeShare> NodesOfPages(std::byte* data, uint64_t bytes) {
  std::map<uint32_t, uint64_t> found;
  const uint64_t pages = bytes / kPageBytes, samples = std::min(pages, kSamples);
  for (uint64_t i = 0; i < samples; ++i) {
    int node = -1;
    // An odd stride: an even one would sample only one of two interleaved nodes.
    const uint64_t page = std::min(pages - 1, i * ((pages / samples) | 1U));
    if (syscall(SYS_get_mempolicy, &node, nullptr, 0UL, data + page * kPageBytes,
                MPOL_F_NODE | MPOL_F_ADDR) != 0)
      return {};
    ++found[static_cast<uint32_t>(node)];
  }
  std::vector<NodeShare> shares;
  for (const auto& [node, count] : found) shares.push_back({node, bytes / samples * count});
  return shares;
}

}  // namespace tidepool::memserver
