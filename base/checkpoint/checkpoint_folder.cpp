// Lists a folder of checkpoints (checkpoint_files.h).
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/read_whole.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPartial = ".partial";
constexpr size_t kReadBytes = 4 << 20;
constexpr int kMakeTries = 10;
constexpr mode_t kDirectoryMode = 0777;

Status Bad(const std::string& path, const std::string& what) {
  return Status(ErrorId::kCheckpointBad, "the checkpoint is not whole: " + what).Where(path);
}

// False: another process holds the lock. A file system without locks excludes no process.
bool TryLock(int fd) {
  return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

// The CRC of `bytes` bytes of an open file from `at` on.
bool CrcOf(std::ifstream* file, uint64_t at, uint64_t bytes, uint32_t* crc) {
  std::vector<char> buffer(kReadBytes);
  file->seekg(static_cast<std::streamoff>(at));
  *crc = 0;
  while (bytes > 0) {
    const uint64_t some = std::min<uint64_t>(bytes, buffer.size());
    if (!file->read(buffer.data(), static_cast<std::streamsize>(some))) return false;
    *crc = Crc32c(std::as_bytes(std::span(buffer).first(some)), *crc);
    bytes -= some;
  }
  return true;
}

Status VerifyTensors(const std::string& path, const std::string& name, const Manifest& manifest,
                     std::ifstream* file, uint64_t bytes) {
  std::array<std::byte, kSafetensorsPrefixBytes> prefix{};
  file->seekg(0);
  file->read(reinterpret_cast<char*>(prefix.data()), prefix.size());
  TP_ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderLength(prefix, bytes));
  std::string json(length, '\0');
  file->read(json.data(), static_cast<std::streamsize>(length));
  const uint64_t data_at = prefix.size() + length;
  TP_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                      DecodeSafetensorsHeader(json, bytes - data_at));

  std::map<std::string, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.tensors) entries[entry.name] = &entry;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.file != name) continue;
    const auto found = entries.find(tensor.name);
    if (found == entries.end()) return Bad(path, "tensor " + tensor.name + " is missing");
    uint32_t crc = 0;
    const SafetensorsEntry& entry = *found->second;

    const bool read = CrcOf(file, data_at + entry.begin, entry.end - entry.begin, &crc);
    if (!read || (crc != tensor.crc && !TP_PLANTED("checkpoint.tensor_unchecked")))
      return Bad(path, "the bytes of tensor " + tensor.name + " do not fit their check");
  }
  return {};
}

}  // namespace

Result<std::string> ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  const uint64_t bytes = in ? fs::file_size(path, error) : 0;
  if (!in || error || bytes > kManifestBytesMax)
    return Status(ErrorId::kFileUnreadable, "cannot be read: " + std::string(std::strerror(errno)))
        .Where(path);
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::optional<uint64_t> VersionOfName(const std::string& name) {
  constexpr std::string_view kStart = "step-";
  if (!name.starts_with(kStart) || name.size() > 30) return {};
  uint64_t version = 0;
  for (const char c : name.substr(kStart.size())) {
    if (c < '0' || c > '9') return {};
    version = version * 10 + static_cast<uint64_t>(c - '0');
  }
  return name == CheckpointName(version) ? std::optional(version) : std::nullopt;
}

Result<Manifest> OpenCheckpoint(const std::string& path) {
  const std::string at = path + "/" + kManifestFile;
  if (fs::is_directory(path) && !fs::exists(at)) return Bad(path, "it has no MANIFEST");
  TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(at));
  Result<Manifest> manifest = ReadManifest(text);
  if (!manifest.ok()) return Status(manifest.status()).Where(at);
  for (const ManifestFile& file : manifest->files) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path + "/" + file.name, error);

    if (error) return Bad(path + "/" + file.name, error.message());
    if (bytes != file.bytes)
      return Bad(path + "/" + file.name,
                 std::to_string(bytes) + " bytes instead of " + std::to_string(file.bytes));
  }
  return manifest;
}

Status VerifyCheckpoint(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const Manifest manifest, OpenCheckpoint(path));
  for (const ManifestFile& file : manifest.files) {
    const std::string at = path + "/" + file.name;
    std::ifstream in(at, std::ios::binary);
    uint32_t crc = 0;
    if (!CrcOf(&in, 0, file.head, &crc) || crc != file.crc)
      return Bad(at, "its first " + std::to_string(file.head) + " bytes do not fit their check");

    if (file.head < file.bytes)
      TP_RETURN_IF_ERROR(VerifyTensors(at, file.name, manifest, &in, file.bytes));
  }
  return {};
}

Result<std::vector<FoundCheckpoint>> FindCheckpoints(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto version = VersionOfName(entry.path().filename());
    if (!version) continue;
    found.push_back({entry.path(), *version, OpenCheckpoint(entry.path()).status()});
  }

  if (error && error != std::errc::no_such_file_or_directory)
    return Status(ErrorId::kFileUnreadable, "cannot be looked through: " + error.message())
        .Where(folder);
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.version < b.version; });
  return found;
}

Result<std::vector<std::string>> CheckpointsBeyond(const std::string& folder, uint64_t keep) {
  TP_ASSIGN_OR_RETURN(const auto found, FindCheckpoints(folder));
  std::vector<std::string> goes;
  uint64_t whole = 0;
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    const bool stays = whole < keep;
    if (it->state.ok()) ++whole;
    if (!stays) goes.push_back(it->path);
  }
  return goes;
}

Result<std::vector<std::string>> PruneCheckpoints(const std::string& folder, uint64_t keep) {
  TP_ASSIGN_OR_RETURN(std::vector<std::string> goes, CheckpointsBeyond(folder, keep));
  for (const std::string& path : goes) {
    std::error_code error;
    // Without its manifest it is no checkpoint from here on, even if this is interrupted.
    fs::remove(path + "/" + kManifestFile, error);
    fs::remove_all(path, error);
    if (error)
      return Status(ErrorId::kSaveFailed, "cannot be removed: " + error.message()).Where(path);
  }
  return goes;
}

Result<PartialCheckpoint> PartialCheckpoint::Make(const std::string& folder,
                                                  const std::string& name) {
  PartialCheckpoint made;
  made.path_ = folder + "/" + name + std::string(kPartial);
  const auto failed = [&made](const std::string& why) {
    return Status(ErrorId::kSaveFailed, "cannot make the directory: " + why).Where(made.path_);
  };
  // Another writer may remove the new directory as a leftover: then it is made again.
  for (int tries = 0; tries < kMakeTries; ++tries) {
    if (mkdir(made.path_.c_str(), kDirectoryMode) != 0)
      return failed(errno == EEXIST ? "another process is writing it" : std::strerror(errno));
    made.lock_ = UniqueFd(open(made.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const bool locked = made.lock_.valid() && TryLock(made.lock_.get());
    struct stat there {};
    struct stat own {};

    if (locked && stat(made.path_.c_str(), &there) == 0 && fstat(made.lock_.get(), &own) == 0 &&
        there.st_ino == own.st_ino)
      return made;
  }
  return failed("others remove it");
}

void PartialCheckpoint::Remove() {
  std::error_code error;
  if (lock_.valid()) fs::remove_all(path_, error);
}

Status RemovePartials(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> goes;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name.ends_with(kPartial)) goes.push_back(entry.path());
  }
  for (const std::string& path : goes) {
    const UniqueFd lock(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock.valid() && !TryLock(lock.get())) continue;
    fs::remove_all(path, error);

    if (error)
      return Status(ErrorId::kSaveFailed, "cannot be removed: " + error.message()).Where(path);
  }
  return {};
}

}  // namespace tidepool
