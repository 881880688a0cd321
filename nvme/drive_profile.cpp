#include "nvme/drive_profile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"
#include "base/units.h"

namespace tidepool::nvme {
namespace {

constexpr const char* kForm = "tidepool drive profile 1\nblock %u\ndepth %u\n";
constexpr const char* kNewName = "profile.new";
constexpr mode_t kProfileMode = 0600;

Status CannotWrite(const std::string& directory) {
  return Status(ErrorId::kNvmeDirectoryBad,
                std::string("the profile of the drive cannot be written: ") + std::strerror(errno))
      .Where(directory + "/" + kProfileFileName);
}

}  // namespace

std::string TextOf(const DriveProfile& profile) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), kForm, profile.block_bytes, profile.depth);
  return text.data();
}

std::optional<DriveProfile> ParseProfile(const std::string& text) {
  DriveProfile profile;
  if (std::sscanf(text.c_str(), kForm, &profile.block_bytes, &profile.depth) != 2 ||
      TextOf(profile) != text)
    return std::nullopt;
  const bool block = profile.block_bytes >= kPageBytes && profile.block_bytes <= kDriveBlockMax &&
                     profile.block_bytes % kPageBytes == 0;
  return block && profile.depth >= 1 && profile.depth <= kDriveDepthMax ? std::optional(profile)
                                                                        : std::nullopt;
}

FoundProfile ReadProfile(int directory) {
  const UniqueFd fd(
      openat(directory, kProfileFileName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return {std::nullopt, errno == ENOENT ? "" : std::strerror(errno)};
  struct stat facts {};
  if (fstat(fd.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != geteuid())
    return {std::nullopt, "it is no plain file of ours"};

  std::array<char, 256> bytes{};
  const ssize_t got = read(fd.get(), bytes.data(), bytes.size());
  if (got < 0) return {std::nullopt, std::strerror(errno)};
  const auto profile = ParseProfile(std::string(bytes.data(), static_cast<size_t>(got)));
  return {profile, profile ? "" : "it is not as `memserver bench nvme` writes it"};
}

Status WriteProfile(const std::string& directory, const DriveProfile& profile) {
  const UniqueFd in(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!in.valid()) return CannotWrite(directory);
  unlinkat(in.get(), kNewName, 0);  // left by a killed program
  const std::string text = TextOf(profile);

  {
    const UniqueFd fd(openat(in.get(), kNewName,
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kProfileMode));
    if (!fd.valid() ||
        write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        fsync(fd.get()) != 0) {
      return CannotWrite(directory);
    }
  }
  return renameat(in.get(), kNewName, in.get(), kProfileFileName) == 0 ? Status()
                                                                       : CannotWrite(directory);
}

}  // namespace tidepool::nvme
