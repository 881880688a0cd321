// RepeatFinder: tells, file after file, which ones repeat an earlier one.
//
// One thread. A file is a repeat when it shares more than half of its shingles with one earlier
// file that was none. (A shingle is a run of five words; letters' case and everything but letters
// and digits do not count.) The time grows with the text, even where all files share a part, such
// as the header of a licence: a file is compared only with files that have one of the rarer half of
// its shingles, because no other can share more than half of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tidepool::trainer {

class RepeatFinder {
 public:
  // Only shingles whose hash is 0 modulo `one_of` are looked at.
  explicit RepeatFinder(uint64_t one_of) : one_of_(one_of) {}

  // Looks at the next file; true where it repeats an earlier one.
  bool IsRepeat(std::string_view text);
  // Pairs of files that were compared so far.
  uint64_t compared() const { return compared_; }

 private:
  const uint64_t one_of_;
  uint64_t compared_ = 0;
  std::vector<std::vector<uint64_t>> files_;  // those that repeat none: their shingles, ascending
  std::unordered_map<uint64_t, std::vector<uint32_t>> files_with_;
};

}  // namespace tidepool::trainer
