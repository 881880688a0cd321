#include "trainer/output/reported_lines.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kBlockBytes = 64 * 1024;
constexpr std::string_view kHead = "{\"step\":";
// With any 64-bit number and the comma after it.
constexpr uint64_t kHeadBytes = kHead.size() + 20 + 1;

// The step of a line with this beginning.
std::optional<uint64_t> StepOf(std::string_view head) {
  if (!head.starts_with(kHead)) return std::nullopt;
  uint64_t step = 0;
  const char* end = head.data() + head.size();
  const auto [behind, error] = std::from_chars(head.data() + kHead.size(), end, step);
  if (error != std::errc() || behind == end || *behind != ',') return std::nullopt;
  return step;
}

// Scans a file backwards, newline by newline.
class BackwardReader {
 public:
  BackwardReader(int fd, uint64_t size) : fd_(fd), block_begin_(size), at_(size) {}

  // Position of the newline before the last one found; nullopt if there is none.
  Result<std::optional<uint64_t>> NextNewline() {
    for (;;) {
      const std::string_view unread(block_.data(), at_ - block_begin_);
      if (const size_t found = unread.rfind('\n'); found != std::string_view::npos) {
        at_ = block_begin_ + found;
        return std::optional(at_);
      }

      if (block_begin_ == 0) return std::optional<uint64_t>();
      at_ = block_begin_;
      block_begin_ -= std::min(block_begin_, kBlockBytes);
      TP_RETURN_IF_ERROR(Read(block_begin_, block_.data(), at_ - block_begin_));
    }
  }

  // The start of the line that begins at `begin` and has its newline at `end`.
  Result<std::string_view> HeadOf(uint64_t begin, uint64_t end) {
    const uint64_t size = std::min(end - begin, kHeadBytes);
    TP_RETURN_IF_ERROR(Read(begin, head_.data(), size));
    return std::string_view(head_.data(), size);
  }

  uint64_t looked_at() const { return looked_at_; }

 private:
  Status Read(uint64_t from, char* to, uint64_t size) {
    looked_at_ += size;
    while (size > 0) {
      const ssize_t n = pread(fd_, to, size, static_cast<off_t>(from));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        return Status(ErrorId::kFileUnreadable,
                      n == 0 ? "it became shorter while it was read" : std::strerror(errno));

      from += static_cast<uint64_t>(n);
      to += n;
      size -= static_cast<uint64_t>(n);
    }
    return {};
  }

  int fd_;
  // The block's position in the file; bytes from at_ on have been scanned.
  uint64_t block_begin_, at_;
  std::array<char, kBlockBytes> block_{};
  std::array<char, kHeadBytes> head_{};
  uint64_t looked_at_ = 0;
};

}  // namespace

Result<ReportedLines> FindReportedLines(int fd, uint64_t sealed) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return Status(ErrorId::kFileUnreadable, std::strerror(errno));
  ReportedLines lines;
  if (!S_ISREG(status.st_mode)) return lines;

  BackwardReader file(fd, static_cast<uint64_t>(status.st_size));
  TP_ASSIGN_OR_RETURN(std::optional<uint64_t> end, file.NextNewline());

  while (end) {
    TP_ASSIGN_OR_RETURN(const std::optional<uint64_t> before, file.NextNewline());
    const uint64_t begin = before ? *before + 1 : 0;
    TP_ASSIGN_OR_RETURN(const std::string_view head, file.HeadOf(begin, *end));
    const std::optional<uint64_t> step = StepOf(head);

    if (lines.bytes == 0 && step && *step <= sealed) {
      lines.bytes = *end + 1;
      lines.last = *step;
    }
    if (lines.bytes > 0 && !TP_PLANTED("trainer.metrics_read_whole")) break;
    end = before;
  }
  lines.looked_at = file.looked_at();
  return lines;
}

}  // namespace tidepool::trainer
