// DriveProfile: the best I/O parameters for the drive of an NVMe directory, as measured by
// `memserver bench nvme DIR`. A small text file in the directory itself, so that it moves with the
// drive; memserver uses it unless a setting says otherwise.
//
// Any thread, at start; it blocks. A profile that cannot be trusted is ignored: only speed depends
// on it.
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
// Parses the text of TextOf; nothing for any other text.
std::optional<DriveProfile> ParseProfile(const std::string& text);

// The profile in a directory, if it has a usable one.
struct FoundProfile {
  std::optional<DriveProfile> profile;
  std::string why_not;  // why an existing profile is not used
};
// Reads the profile of the directory open as `directory`.
FoundProfile ReadProfile(int directory);
// Replaces the profile atomically. Errors: kNvmeDirectoryBad.
Status WriteProfile(const std::string& directory, const DriveProfile& profile);

}  // namespace tidepool::nvme
