// DriveProfile: how the drive of an NVMe directory is best asked, as measured by `memserver bench
// nvme DIR`. A small file of text in the directory itself, so that it goes where the drive goes;
// memserver uses it where no setting says otherwise.
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
  uint32_t block_bytes = 0;  // per read or write: whole pages, kDriveBlockMax at most
  uint32_t depth = 0;        // reads or writes in flight: 1 to kDriveDepthMax
  bool operator==(const DriveProfile&) const = default;
};

// The text of the profile's file.
std::string TextOf(const DriveProfile& profile);
// No profile where the text is not one that TextOf makes.
std::optional<DriveProfile> ParseProfile(const std::string& text);

// The profile in a directory, if there is one that can be used.
struct FoundProfile {
  std::optional<DriveProfile> profile;
  std::string why_not;  // why a profile that is there is not used
};
// Reads the profile of the directory that is open as `directory`.
FoundProfile ReadProfile(int directory);
// Replaces the profile that is there, as a whole. Errors: kNvmeDirectoryBad.
Status WriteProfile(const std::string& directory, const DriveProfile& profile);

}  // namespace tidepool::nvme
