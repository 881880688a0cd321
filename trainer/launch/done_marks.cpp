#include "trainer/launch/done_marks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tidepool::trainer {

Result<DoneMarks> DoneMarks::Make(uint32_t ranks) {
  UniqueFd fd(memfd_create("tidepool-done", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), ranks) != 0) {
    return Status(ErrorId::kInternal,
                  std::string("no memory for the marks of ranks: ") + std::strerror(errno));
  }
  return DoneMarks(std::move(fd));
}

std::string DoneMarks::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_.get());
}

bool DoneMarks::IsSet(uint32_t rank) const {
  char mark = 0;
  return pread(fd_.get(), &mark, 1, rank) == 1 && mark != 0;
}

void SetDoneMark(const std::string& path, uint32_t rank) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const char mark = 1;
  if (fd.valid()) [[maybe_unused]]
    const auto written = pwrite(fd.get(), &mark, 1, rank);
}

}  // namespace tidepool::trainer
