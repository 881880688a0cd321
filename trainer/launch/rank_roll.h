// RankRoll: the launcher's knowledge of each rank's process, for ranks that wait for others: alive
// and on its way, or ended for good. RankRollView: a rank's view of it.
//
// One thread of the launcher writes; any thread of any rank reads. The roll is in a sealed memfd of
// the launcher, which ranks open by its name under /proc and map read-only (like done_marks.h, and
// for the same reason: nothing is left behind, and programs started by a rank inherit no
// descriptor). Each rank has one 64-bit word, stored and loaded atomically.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

// The state of one rank.
struct RollEntry {
  enum class State : uint64_t {
    // Not started, or dead and its restart is undecided.
    kNothing = 0,
    kComing = 1,  // started, and its end was not seen
    kEnded = 2,   // will not be restarted
  };
  State state = State::kNothing;
  uint32_t life = 0;  // number of starts
  pid_t pid = 0;      // kComing
  int exit_code = 0;  // kEnded; 128 + signal when it was killed

  friend bool operator==(const RollEntry&, const RollEntry&) = default;
};

// A mapping of the roll; unmapped on destruction.
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
  // All entries are kNothing. Errors: kInternal.
  static Result<RankRoll> Make(uint32_t ranks);

  // For RankRollView::Open, in any process of this user, as long as this object lives.
  std::string path() const;
  // `rank` was started as process `pid`.
  void NoteStart(uint32_t rank, pid_t pid);
  // Its process has ended. Call it before its next start, or before NoteEnd.
  void NoteDeath(uint32_t rank);
  // It will not be restarted.
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
  // Errors: kFileUnreadable (nothing at `path`, or not a roll of this number of ranks).
  static Result<RankRollView> Open(const std::string& path, uint32_t ranks);

  // Requires rank < ranks. A word that no launcher writes reads as kNothing.
  RollEntry Read(uint32_t rank) const;

 private:
  explicit RankRollView(RollMapping mapping) : mapping_(std::move(mapping)) {}
  RollMapping mapping_;
};

// False once the process has ended, even if it has not been reaped.
bool ProcessLives(pid_t pid);

}  // namespace tidepool::trainer
