#include "base/checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/checkpoint/read_whole.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "base/point.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;
constexpr mode_t kFileMode = 0644;

}  // namespace

std::string CheckpointName(uint64_t version) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08llu", static_cast<unsigned long long>(version));
  return name;
}

int CheckpointWriter::Fault(const char* operation, const std::string& path) const {
  return fault_ ? fault_(operation, path) : 0;
}

Status CheckpointWriter::Failed(const std::string& path, int error) const {
  return Status(ErrorId::kSaveFailed,
                "the checkpoint cannot be written: " + std::string(std::strerror(error)))
      .Where(path)
      .Why("nothing of it counts; the checkpoints before it are untouched");
}

Result<CheckpointWriter> CheckpointWriter::Begin(const std::string& partial,
                                                 const std::vector<CheckpointTensor>& tensors,
                                                 FileFault fault, const Metadata& metadata) {
  CheckpointWriter writer(partial, std::move(fault));
  std::map<std::string, SafetensorsHeader> headers;
  for (const CheckpointTensor& tensor : tensors) {
    headers[tensor.file].tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
    writer.order_.push_back({tensor.file, tensor.name, 0});
  }

  for (auto& [file, header] : headers) {
    header.metadata = {{"format", "pt"}};
    header.metadata.insert(header.metadata.end(), metadata.begin(), metadata.end());
    TP_ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(&header));
    const uint64_t data_at = head.size();
    uint64_t bytes = data_at;
    for (const SafetensorsEntry& entry : header.tensors) {
      writer.targets_[file + "/" + entry.name] = {file, data_at + entry.begin, data_at + entry.end,
                                                  0};

      bytes = std::max(bytes, data_at + entry.end);
    }
    TP_RETURN_IF_ERROR(writer.Create(file, std::move(head), bytes));
  }
  return writer;
}

// Allocates the space at once, so that a full disk is found before any byte is copied.
Status CheckpointWriter::Create(const std::string& file, std::string head, uint64_t bytes) {
  const std::string path = partial_ + "/" + file;
  int error = Fault("create", path);
  UniqueFd fd;
  if (error == 0) {
    fd = UniqueFd(
        open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kFileMode));
    error = fd.valid() ? posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)) : errno;
    // A file system that cannot preallocate does so as the file is written.
    if (fd.valid() && (error == EOPNOTSUPP || error == EINVAL))
      error = ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (error != 0) return Failed(path, error);

  TP_RETURN_IF_ERROR(WriteAll(fd.get(), path, std::as_bytes(std::span(head)), 0));
  open_[file] = {std::move(fd), std::move(head), bytes};
  TP_POINT("writer.file_created");
  return {};
}

Status CheckpointWriter::WriteAll(int fd, const std::string& path, std::span<const std::byte> bytes,
                                  uint64_t at) {
  while (!bytes.empty()) {
    const int error = Fault("write", path);
    const ssize_t n =
        error == 0 ? pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at)) : -1;
    if (error == 0 && n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed(path, error != 0 ? error : n == 0 ? EIO : errno);

    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return {};
}

Status CheckpointWriter::Write(const std::string& file, const std::string& name,
                               std::span<const std::byte> bytes) {
  const auto found = targets_.find(file + "/" + name);
  if (found == targets_.end() || bytes.size() > found->second.end - found->second.at)
    return Status(ErrorId::kDataBad, "bytes came that " + file + " has no place for").Where(name);
  Target& target = found->second;
  TP_RETURN_IF_ERROR(WriteAll(open_[file].fd.get(), partial_ + "/" + file, bytes, target.at));
  target.crc = Crc32c(bytes, target.crc);
  target.at += bytes.size();
  TP_POINT("writer.piece_written");
  return {};
}

Status CheckpointWriter::SyncFile(const std::string& file) {
  const std::string path = partial_ + "/" + file;
  int error = Fault("sync", path);
  const UniqueFd fd(error == 0 ? open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1);
  if (error == 0 && (!fd.valid() || fsync(fd.get()) != 0)) error = errno;
  return error == 0 ? Status() : Failed(path, error);
}

Status CheckpointWriter::SyncDirectory(const std::string& path) {
  int error = Fault("syncdir", path);
  const UniqueFd fd(error == 0 ? open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  if (error == 0 && (!fd.valid() || fsync(fd.get()) != 0)) error = errno;
  return error == 0 ? Status() : Failed(path, error);
}

// Describes every file of the directory, including those that the caller has put there.
Result<Manifest> CheckpointWriter::Describe(const CheckpointStep& step) {
  Manifest manifest{.step = step, .files = {}, .tensors = order_};
  for (ManifestTensor& tensor : manifest.tensors) {
    const Target& target = targets_[tensor.file + "/" + tensor.name];
    if (target.at != target.end)
      return Status(ErrorId::kDataBad, "a tensor of the checkpoint is not complete")
          .Where(tensor.file + ", " + tensor.name);
    tensor.crc = target.crc;
  }

  std::error_code error;
  for (const auto& entry : fs::directory_iterator(partial_, error)) {
    const std::string name = entry.path().filename();
    if (const auto found = open_.find(name); found != open_.end()) {
      const Open& file = found->second;
      manifest.files.push_back(
          {name, file.bytes, file.head.size(), Crc32c(std::as_bytes(std::span(file.head)))});
      continue;
    }

    TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(entry.path()));
    manifest.files.push_back(
        {name, text.size(), text.size(), Crc32c(std::as_bytes(std::span(text)))});
  }
  if (error) return Failed(partial_, error.value());
  return manifest;
}

Status CheckpointWriter::Commit(const CheckpointStep& step) {
  TP_ASSIGN_OR_RETURN(const Manifest manifest, Describe(step));
  for (const ManifestFile& file : manifest.files) {
    if (TP_PLANTED("checkpoint.files_not_synced")) break;
    TP_RETURN_IF_ERROR(SyncFile(file.name));
  }
  TP_RETURN_IF_ERROR(SyncDirectory(partial_));
  TP_POINT("writer.files_synced");

  const std::string path = partial_ + "/" + kManifestFile;
  if (const int error = Fault("create", path); error != 0) return Failed(path, error);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, kFileMode));
  if (!fd.valid()) return Failed(path, errno);
  const std::string text = TextOf(manifest);
  TP_RETURN_IF_ERROR(WriteAll(fd.get(), path, std::as_bytes(std::span(text)), 0));
  TP_RETURN_IF_ERROR(SyncFile(kManifestFile));
  TP_RETURN_IF_ERROR(SyncDirectory(partial_));
  TP_POINT("writer.manifest_synced");

  const fs::path folder = fs::path(partial_).parent_path();
  const std::string final_path = folder / CheckpointName(step.version);
  if (const int fault = Fault("rename", final_path); fault != 0) return Failed(final_path, fault);
  // An existing checkpoint of that step stays until this one has its name.
  const bool swapped =
      renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0;
  if (!swapped && rename(partial_.c_str(), final_path.c_str()) != 0)
    return Failed(final_path, errno);
  TP_POINT("writer.renamed");
  TP_RETURN_IF_ERROR(SyncDirectory(folder));
  std::error_code error;
  if (swapped) fs::remove_all(partial_, error);
  return {};
}

}  // namespace tidepool
