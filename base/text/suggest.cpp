#include "base/text/suggest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tidepool {
namespace {

// Levenshtein distance, one row at a time.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});

  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }

  return row.back();
}

// The flag without its dashes.
std::string_view Letters(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

}  // namespace

std::string DidYouMean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view letters = Letters(word);
  std::string_view best;
  size_t best_distance = 3, best_edits = 0;

  for (const std::string_view candidate : known) {
    const size_t edits = EditDistance(word, candidate);
    const bool begins_alike =
        letters.size() >= 3 && Letters(candidate).starts_with(letters.substr(0, 3));
    const size_t distance = begins_alike ? std::min<size_t>(edits, 1) : edits;
    const bool nearer =
        distance < best_distance || (distance == best_distance && edits < best_edits);

    if (nearer && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
      best_edits = edits;
    }
  }

  return best.empty() ? std::string() : "; did you mean \"" + std::string(best) + "\"?";
}

}  // namespace tidepool
