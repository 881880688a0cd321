// RepeatFinder: finds out, file by file, which ones repeat an earlier one.
//
// One thread. A file is a repeat if it shares more than half of its shingles with one earlier file
// that is not a repeat. (A shingle is a run of five words; letter case, and characters other than
// letters and digits, are ignored.) The time is linear in the text, even if all files share a part,
// such as a licence header: a file is compared only with files that have one of the rarer half of
// its shingles, because no other can share more than half of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tidepool::trainer {

class RepeatFinder {
 public:
  // Considers only shingles whose hash is 0 modulo `one_of`.
  explicit RepeatFinder(uint64_t one_of) : one_of_(one_of) {}

  // Adds the next file; true if it repeats an earlier one.
  bool IsRepeat(std::string_view text);
  // Number of file pairs compared so far.
  uint64_t compared() const { return compared_; }

 private:
  const uint64_t one_of_;
  uint64_t compared_ = 0;
  std::vector<std::vector<uint64_t>> files_;  // non-repeats: their shingles, ascending
  std::unordered_map<uint64_t, std::vector<uint32_t>> files_with_;
};

}  // namespace tidepool::trainer
