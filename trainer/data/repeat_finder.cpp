#include "trainer/data/repeat_finder.h"

#include <algorithm>
#include <cctype>
#include <unordered_set>
#include <utility>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kShingleWords = 5;

// Hashes of all runs of kShingleWords words; ignores letter case, and characters other than letters
// and digits. Returns only hashes that are 0 modulo `one_of`. A text with fewer words is one
// shingle.
std::unordered_set<uint64_t> Shingles(std::string_view text, uint64_t one_of) {
  std::unordered_set<uint64_t> shingles;
  uint64_t words[kShingleWords] = {};
  size_t count = 0;

  const auto add_shingle = [&] {
    uint64_t hash = 0;
    for (size_t i = 0; i < kShingleWords; ++i)
      hash = (hash ^ words[(count + i) % kShingleWords]) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
    hash ^= hash >> 32;
    if (hash % one_of == 0) shingles.insert(hash);
  };

  for (size_t i = 0; i < text.size();) {
    uint64_t word = 0xCBF29CE484222325ULL;
    const size_t begin = i;
    for (; i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0; ++i) {
      word = (word ^ static_cast<uint64_t>(std::tolower(static_cast<unsigned char>(text[i])))) *
             0x100000001B3ULL;
    }

    if (i == begin) {
      ++i;
      continue;
    }
    words[count++ % kShingleWords] = word;
    if (count >= kShingleWords) add_shingle();
  }

  if (count > 0 && count < kShingleWords) add_shingle();
  return shingles;
}

uint64_t CountOfBoth(const std::vector<uint64_t>& one, const std::vector<uint64_t>& other) {
  uint64_t count = 0;
  for (auto a = one.begin(), b = other.begin(); a != one.end() && b != other.end();) {
    if (*a == *b)
      ++count, ++a, ++b;
    else if (*a < *b)
      ++a;
    else
      ++b;
  }
  return count;
}

}  // namespace

bool RepeatFinder::IsRepeat(std::string_view text) {
  const auto found = Shingles(text, one_of_);
  std::vector<uint64_t> shingles(found.begin(), found.end());
  std::sort(shingles.begin(), shingles.end());

  // For each known shingle: the number of files that have it, and which.
  std::vector<std::pair<size_t, const std::vector<uint32_t>*>> known;
  for (const uint64_t shingle : shingles) {
    const auto files = files_with_.find(shingle);
    if (files == files_with_.end()) continue;
    known.emplace_back(files->second.size(), &files->second);
  }
  // Shingles that no file has also belong to the rarer half.
  const size_t half = (shingles.size() + 1) / 2, unknown = shingles.size() - known.size();
  size_t rare = half - std::min(half, unknown);
  if (TP_PLANTED("data.rarest_only")) rare = std::min<size_t>(rare, 1);
  std::partial_sort(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(rare), known.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });

  std::unordered_set<uint32_t> candidates;
  for (size_t i = 0; i < rare; ++i)
    candidates.insert(known[i].second->begin(), known[i].second->end());
  for (const uint32_t file : candidates) {
    ++compared_;
    if (2 * CountOfBoth(shingles, files_[file]) > shingles.size()) return true;
  }

  for (const uint64_t shingle : shingles)
    files_with_[shingle].push_back(static_cast<uint32_t>(files_.size()));
  files_.push_back(std::move(shingles));
  return false;
}

}  // namespace tidepool::trainer
