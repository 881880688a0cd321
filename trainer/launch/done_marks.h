// DoneMarks: marks by which ranks tell the launcher that all their work is done and only the
// goodbye is left, so that it does not restart them.
//
// One thread. The marks are in a memfd of the launcher, which ranks open by its name under /proc,
// so nothing is left behind. A rank that is killed after its mark is not restarted: its job may be
// gone by then, and a new process would wait for ranks that have ended normally.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

class DoneMarks {
 public:
  // Errors: kInternal.
  static Result<DoneMarks> Make(uint32_t ranks);
  // For SetDoneMark, in any process of this user, as long as this object lives.
  std::string path() const;
  bool IsSet(uint32_t rank) const;

 private:
  explicit DoneMarks(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Failure is silent: a launcher that has ended needs no mark.
void SetDoneMark(const std::string& path, uint32_t rank);

}  // namespace tidepool::trainer
