#include "trainer/inputs/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace tidepool::trainer {
namespace {

namespace fs = std::filesystem;

Status Unwritable(const std::string& what, const std::string& flag, const std::string& path,
                  const std::string& why) {
  return Status(ErrorId::kFileWriteFailed, "cannot " + what + " " + path)
      .Where(flag + " " + path)
      .Why(why);
}

// The first existing one of the path and its parent directories.
fs::path NearestThere(const std::string& path) {
  std::error_code error;
  fs::path there = fs::absolute(path, error).lexically_normal();
  if (error) return path;
  while (there.has_relative_path() && !fs::exists(fs::symlink_status(there, error)))
    there = there.parent_path();
  return there;
}

// Checks that it is a directory, or can be created.
Status CheckDirectory(const std::string& flag, const std::string& path) {
  if (path.empty()) return {};
  const fs::path there = NearestThere(path);
  struct stat about {};
  if (stat(there.c_str(), &about) != 0)
    return Unwritable("write into", flag, path, there.string() + ": " + std::strerror(errno));
  if (!S_ISDIR(about.st_mode))
    return Unwritable("make the directory", flag, path,
                      there.string() + ": " + std::strerror(ENOTDIR));

  if (access(there.c_str(), W_OK | X_OK) == 0) return {};
  return Unwritable("write into the directory", flag, path,
                    there.string() + ": " + std::strerror(errno));
}

Status CheckFile(const std::string& flag, const std::string& path) {
  if (path.empty()) return {};
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) {
    if (errno != ENOENT) return Unwritable("write the file", flag, path, std::strerror(errno));
    const fs::path folder = fs::path(path).parent_path();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return {};
    return Unwritable("write the file", flag, path, std::strerror(errno));
  }

  if (S_ISDIR(about.st_mode))
    return Unwritable("write the file", flag, path, std::strerror(EISDIR));
  if (access(path.c_str(), W_OK) == 0) return {};
  return Unwritable("write the file", flag, path, std::strerror(errno));
}

Status PrepareDirectory(const std::string& flag, const std::string& path) {
  if (path.empty()) return {};
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Unwritable("make the directory", flag, path, error.message());
  if (access((path + "/.").c_str(), W_OK | X_OK) == 0) return {};
  return Unwritable("write into the directory", flag, path, std::strerror(errno));
}

Status PrepareFile(const std::string& flag, const std::string& path) {
  if (path.empty() || UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)).valid())
    return {};
  return Unwritable("write the file", flag, path, std::strerror(errno));
}

}  // namespace

OutputPlaces OutputsOf(const OutputOptions& output) {
  return {.reports = output.out_dir, .weights = output.save_dir, .trace = output.trace_file};
}

Status CheckOutputs(const OutputOptions& output) {
  TP_RETURN_IF_ERROR(CheckDirectory("--out", output.out_dir));
  TP_RETURN_IF_ERROR(CheckDirectory("--save", output.save_dir));
  return CheckFile("--trace", output.trace_file);
}

Status PrepareOutputs(const OutputOptions& output) {
  TP_RETURN_IF_ERROR(PrepareDirectory("--out", output.out_dir));
  TP_RETURN_IF_ERROR(PrepareDirectory("--save", output.save_dir));
  return PrepareFile("--trace", output.trace_file);
}

}  // namespace tidepool::trainer
