#include "memserver/traffic/nvme_tier.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/units.h"
#include "memserver/residency/pool/pool_pages.h"
#include "nvme/io_queue.h"

namespace tidepool::memserver {
namespace {

// Opens all directories. A missing one keeps its place, because jobs know directories by their
// number.
Result<std::vector<nvme::SlotDirectory>> OpenAll(const std::vector<NvmeDirectory>& wanted,
                                                 Clock* clock, std::vector<Status>* absent) {
  std::vector<nvme::SlotDirectory> opened;
  for (const NvmeDirectory& directory : wanted) {
    auto tried =
        nvme::SlotDirectory::Open({.path = directory.path, .bytes = directory.bytes}, clock);
    absent->push_back(tried.status());
    if (tried.status().id() == ErrorId::kNvmeDirectoryBad &&
        !TP_PLANTED("nvme.absent_ends_the_start")) {
      opened.emplace_back();
      continue;
    }

    TP_ASSIGN_OR_RETURN(nvme::SlotDirectory slots, std::move(tried));
    if (slots.was_empty()) {
      absent->back() = Status(ErrorId::kNvmeDirectoryMissing,
                              "the NVMe directory held nothing: is its drive mounted?")
                           .Where(directory.path);
    }

    if (!slots.damage().empty())
      LogError("an NVMe directory was damaged",
               {{"directory", directory.path}, {"what", slots.damage()}});
    if (!slots.direct()) {
      LogWarn("the file system takes no direct transfers: states on NVMe go through the page cache",
              {{"directory", directory.path}});
    }
    opened.push_back(std::move(slots));
  }
  return opened;
}

// Fills in what no setting gives: the largest value in the profiles of the directories, since
// larger ones cost a drive little. A profile that cannot be used is logged.
NvmeOptions WithProfiles(NvmeOptions options, const std::vector<nvme::SlotDirectory>& directories) {
  uint32_t block_bytes = 0, depth = 0;

  for (const auto& directory : directories) {
    const nvme::FoundProfile& found = directory.profile();
    if (found.profile) {
      block_bytes = std::max(block_bytes, found.profile->block_bytes);
      depth = std::max(depth, found.profile->depth);
    } else if (!found.why_not.empty()) {
      LogWarn("the profile of a drive is not used",
              {{"file", directory.path() + "/" + nvme::kProfileFileName},
               {"why", found.why_not},
               {"fix", "memserver bench nvme " + directory.path()}});
    }
  }

  if (options.block_bytes == 0)
    options.block_bytes = block_bytes > 0 ? block_bytes : kBlockBytesDefault;
  if (options.depth == 0) options.depth = depth > 0 ? depth : kDepthDefault;
  return options;
}

nvme::IoQueueOptions QueueOptionsOf(const std::vector<nvme::SlotDirectory>& directories,
                                    std::span<std::byte> staging, const NvmeOptions& wanted) {
  nvme::IoQueueOptions options;
  // One share per drive, so that a drive that does not answer takes nothing from another.
  const auto drives = static_cast<uint32_t>(directories.size());
  options.depth = wanted.depth * drives;
  options.files_per_line = 3;
  options.allow_uring = wanted.allow_uring;
  options.buffers = {staging};
  for (const auto& directory : directories) {
    options.files.insert(options.files.end(),
                         {directory.data_fd(), directory.manifest_fd(0), directory.manifest_fd(1)});
  }
  return options;
}

}  // namespace

Status WhyNotNew(const NvmeTier* tier) {
  if (tier == nullptr) return Status();
  const auto gone = [](const Status& each) { return each.id() == ErrorId::kNvmeDirectoryBad; };
  const auto found = std::find_if(tier->absent.begin(), tier->absent.end(), gone);
  return found == tier->absent.end() ? Status() : *found;
}

Result<std::unique_ptr<NvmeTier>> OpenNvmeTier(const NvmeOptions& wanted, Clock* clock) {
  if (wanted.directories.empty()) return std::unique_ptr<NvmeTier>();
  std::vector<Status> absent;
  TP_ASSIGN_OR_RETURN(std::vector<nvme::SlotDirectory> opened,
                      OpenAll(wanted.directories, clock, &absent));
  const NvmeOptions options = WithProfiles(wanted, opened);

  TP_ASSIGN_OR_RETURN(nvme::PageMemory staging,
                      nvme::PageMemory::Map(StateTier::MemoryBytes(opened.size())));
  std::vector<TierDirectory> parts;
  for (size_t d = 0; d < opened.size(); ++d)
    parts.push_back({wanted.directories[d].path, opened[d].manifest(), opened[d].data_fd()});

  nvme::OpenedIoQueue queue = nvme::OpenIoQueue(QueueOptionsOf(opened, staging.bytes(), options));
  if (!queue.fallback.empty())
    LogWarn("reads and writes of states on NVMe take a slower way", {{"why", queue.fallback}});
  auto tier =
      std::make_unique<StateTier>(queue.queue.get(), clock, std::move(parts), staging.bytes(),
                                  TierOptions{.block_bytes = options.block_bytes,
                                              .late_ns = options.deadline_ns,
                                              .lost_ns = kDeadlinesMax * options.deadline_ns});

  const uint64_t huge = HugePageBytes(staging.bytes().data(), staging.bytes().size());
  if (huge < staging.bytes().size() / 2) {
    LogWarn(
        "the staging of states on NVMe has pages of 4 KiB: transfers are slower, and take more CPU "
        "time",
        {{"in_pages_of_2mib", LogBytes{huge}},
         {"fix", "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"}});
  }

  LogInfo("NVMe tier", {{"directories", opened.size()},
                        {"capacity", LogBytes{tier->capacity_bytes()}},
                        {"staging", LogBytes{staging.bytes().size()}},
                        {"huge_pages", LogBytes{huge}},
                        {"block", LogBytes{options.block_bytes}},
                        {"depth", options.depth},
                        {"io", queue.queue->Name()}});
  return std::make_unique<NvmeTier>(NvmeTier{std::move(absent), std::move(opened),
                                             std::move(staging), std::move(queue.queue),
                                             std::move(tier)});
}

}  // namespace tidepool::memserver
