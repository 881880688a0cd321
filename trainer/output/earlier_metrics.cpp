#include "trainer/output/earlier_metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/planted.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kEndBytes = 64 * 1024;  // read from the end; longer than any line of ours
constexpr uint32_t kNamesMax = 10'000;

Status Failed(const std::string& what, const std::string& path) {
  return Status(ErrorId::kFileWriteFailed, what + " " + path + ": " + std::strerror(errno))
      .Fix("give another --out, or make room for a second file there");
}

// The last complete line of a regular file; nullopt without a file or a complete line.
std::optional<std::string> LastLine(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::nullopt;
  const auto size = static_cast<uint64_t>(status.st_size);

  std::string end(std::min(size, kEndBytes), '\0');
  const ssize_t n =
      pread(file.get(), end.data(), end.size(), static_cast<off_t>(size - end.size()));
  end.resize(n > 0 ? static_cast<size_t>(n) : 0);
  const size_t newline = end.rfind('\n');
  if (newline == std::string::npos) return std::nullopt;
  const size_t before = newline > 0 ? end.rfind('\n', newline - 1) : std::string::npos;
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return end.substr(begin, newline - begin);
}

bool IsOfAnother(const std::string& line, uint64_t sealed) {
  unsigned long long step = 0;
  if (std::sscanf(line.c_str(), "{\"step\":%llu,", &step) != 1) return true;
  return step > sealed;
}

// Reserves a free name by creating an empty file.
Result<std::string> TakeFreeName(const std::string& directory) {
  for (uint32_t number = 1; number <= kNamesMax; ++number) {
    std::string name = "metrics." + std::to_string(number) + ".jsonl";
    const std::string path = directory + "/" + name;
    if (UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)).valid())
      return name;
    if (errno != EEXIST) return Failed("cannot keep the metrics of an earlier run as", path);
  }
  return Status(ErrorId::kFileWriteFailed, "there are " + std::to_string(kNamesMax) +
                                               " metrics files of earlier runs in " + directory)
      .Fix("give another --out");
}

}  // namespace

Result<std::string> SetAsideEarlier(const std::string& directory, uint64_t sealed) {
  const std::string path = directory + "/metrics.jsonl";
  const std::optional<std::string> last = LastLine(path);
  if (!last || !IsOfAnother(*last, sealed) || TP_PLANTED("trainer.earlier_metrics_lost"))
    return std::string();

  TP_ASSIGN_OR_RETURN(std::string name, TakeFreeName(directory));
  const std::string aside = directory + "/" + name;
  std::error_code error;
  if (sealed == 0) {
    std::filesystem::rename(path, aside, error);
  } else {  // its lines up to the sealed step may be this run's
    std::filesystem::copy_file(path, aside, std::filesystem::copy_options::overwrite_existing,
                               error);
  }

  if (!error) return name;
  errno = error.value();
  return Failed("cannot keep the metrics of an earlier run as", aside);
}

}  // namespace tidepool::trainer
