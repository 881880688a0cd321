// DriveProfile: how the drive of an NVMe directory is best asked, as `memserver bench nvme DIR` has
// measured it. A small file of text in the directory itself, so that it goes where the drive goes;
// memserver takes it where no setting says otherwise.
//
// Any thread, at start; it blocks. A profile that cannot be trusted is not used: nothing but speed
// depends on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace tidepool::nvme {

inline constexpr const char* kProfileFileName = "profile";
inline constexpr uint32_t kDriveBlockMax = 64u << 20, kDriveDepthMax = 1024;

struct DriveProfile {
  uint32_t block_bytes = 0;  // of one read or write: whole pages, kDriveBlockMax at most
  uint32_t depth = 0;        // of them that are out at once: 1 to kDriveDepthMax
  bool operator==(const DriveProfile&) const = default;
};

std::string TextOf(const DriveProfile& profile);
// Nothing where the text is not one that TextOf makes.
std::optional<DriveProfile> ParseProfile(const std::string& text);

struct FoundProfile {
  std::optional<DriveProfile> profile;
  std::string why_not;  // it is there, and is not used
};
// Of the directory that is open as `directory`.
FoundProfile ReadProfile(int directory);
// Replaces the one that is there, as a whole. Errors: kNvmeDirectoryBad.
Status WriteProfile(const std::string& directory, const DriveProfile& profile);

}  // namespace tidepool::nvme
