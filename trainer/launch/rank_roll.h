// RankRoll: what the launcher knows of each rank's process, for ranks that wait for others: that it
// lives and is on its way, or that it has ended for good. RankRollView: a rank's look at it.
//
// One thread of the launcher writes; any thread of any rank reads. The roll lies in a sealed memfd
// of the launcher's, which ranks open by its name below /proc and map for reading (as done_marks.h,
// and for the same reason: nothing is left behind, and no program that a rank starts inherits a
// descriptor). Each rank has one 64-bit word, stored and loaded whole.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

// What is known of one rank.
struct RollEntry {
  enum class State : uint64_t {
    // It has not been started, or has died and nobody has decided yet whether it comes again.
    kNothing = 0,
    kComing = 1,  // it was started, and its end was not seen
    kEnded = 2,   // it is not started again
  };
  State state = State::kNothing;
  uint32_t life = 0;  // how often it has been started
  pid_t pid = 0;      // kComing
  int exit_code = 0;  // kEnded; 128 + signal when it was killed

  friend bool operator==(const RollEntry&, const RollEntry&) = default;
};

// Memory of another process, or ours for it; unmapped at the end.
class RollMapping {
 public:
  RollMapping() = default;
  RollMapping(void* begin, size_t bytes) : begin_(begin), bytes_(bytes) {}
  RollMapping(RollMapping&& other) noexcept;
  RollMapping& operator=(RollMapping&& other) noexcept;
  ~RollMapping();
  void* begin() const { return begin_; }

 private:
  void* begin_ = nullptr;
  size_t bytes_ = 0;
};

class RankRoll {
 public:
  // Nothing is noted yet. Errors: kInternal.
  static Result<RankRoll> Make(uint32_t ranks);

  // For RankRollView::Open, in any process of this user, as long as this object lives.
  std::string path() const;
  // `rank` was started, as this process.
  void NoteStart(uint32_t rank, pid_t pid);
  // Its process has ended. Comes before its next start, or before NoteEnd.
  void NoteDeath(uint32_t rank);
  // It is not started again.
  void NoteEnd(uint32_t rank, int exit_code);

 private:
  RankRoll(UniqueFd fd, RollMapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  void Store(uint32_t rank, const RollEntry& entry);
  RollEntry Read(uint32_t rank) const;

  UniqueFd fd_;
  RollMapping mapping_;
};

class RankRollView {
 public:
  // Errors: kFileUnreadable (there is none at `path`, or it is no roll of so many ranks).
  static Result<RankRollView> Open(const std::string& path, uint32_t ranks);

  // rank < ranks. A word that no launcher writes reads as kNothing.
  RollEntry Read(uint32_t rank) const;

 private:
  explicit RankRollView(RollMapping mapping) : mapping_(std::move(mapping)) {}
  RollMapping mapping_;
};

// False once the process has ended, also while nobody has collected it.
bool ProcessLives(pid_t pid);

}  // namespace tidepool::trainer
