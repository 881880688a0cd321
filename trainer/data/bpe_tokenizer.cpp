#include "trainer/data/bpe_tokenizer.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// GPT-2's: contractions; words, numbers and signs with an optional space in front; spaces.
constexpr const char* kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr size_t kKnownMax = 1 << 20;  // number of cached pieces
// A piece may be as long as the text. Compiled patterns have 32 KiB of stack unless given more.
constexpr size_t kStackMin = 32 * kKiB, kStackMax = 64 * kMiB;

uint64_t KeyOf(uint32_t left, uint32_t right) {
  return uint64_t{left} << 32 | right;
}

// Length of the UTF-8 character at the start of `text`; 0 if invalid. (RFC 3629)
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&text](size_t i) -> uint32_t { return static_cast<uint8_t>(text[i]); };
  const uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xF0 && first <= 0xF4   ? 4
                      : first >= 0xE0 && first <= 0xEF ? 3
                      : first >= 0xC2 && first <= 0xDF ? 2
                                                       : 0;
  if (size == 0 || text.size() < size) return 0;

  // The second byte shows overlong forms, surrogates, and values beyond U+10FFFF.
  const uint32_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint32_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return size;
}

// The longest prefix of `text` that is valid UTF-8.
std::string_view ValidStart(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t size = CharacterBytes(text.substr(end));
    if (size == 0) break;
    end += size;
  }
  return text.substr(0, end);
}

}  // namespace

struct BpeTokenizer::Pattern {
  Pattern() {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    TP_CHECK(code != nullptr, "GPT-2's pattern is one");
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if it fails, matching is slower

    found = pcre2_match_data_create_from_pattern(code, nullptr);
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(kStackMin, kStackMax, nullptr);
    TP_CHECK(found != nullptr && context != nullptr && stack != nullptr,
             "there is memory for a match");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Pattern() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(found);
    pcre2_code_free(code);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // The end of the piece that begins at `begin`. The pattern matches at any position.
  size_t EndOf(std::string_view text, size_t begin) const {
    const int matched = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    begin, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, found, context);
    const size_t end = matched > 0 ? pcre2_get_ovector_pointer(found)[1] : begin;
    return std::max(end, begin + 1);
  }

  pcre2_code* code = nullptr;
  pcre2_match_data* found = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

BpeTokenizer::BpeTokenizer(const TokenizerFile& file)
    : pattern_(std::make_unique<Pattern>()),
      tokens_(file.tokens),
      added_(file.added),
      prefix_space_(file.prefix_space) {
  // Longest first, so that it wins if several begin at one position.
  std::sort(added_.begin(), added_.end(), [](const auto& a, const auto& b) {
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
  });
}
BpeTokenizer::~BpeTokenizer() = default;
BpeTokenizer::BpeTokenizer(BpeTokenizer&&) noexcept = default;
BpeTokenizer& BpeTokenizer::operator=(BpeTokenizer&&) noexcept = default;

Result<BpeTokenizer> BpeTokenizer::Make(const TokenizerFile& file) {
  BpeTokenizer made(file);
  std::unordered_map<std::string_view, uint32_t> ids;
  for (uint32_t id = 0; id < made.tokens_.size(); ++id) ids.emplace(made.tokens_[id], id);

  const auto missing = [&file](const std::string& what) {
    return Status(ErrorId::kDataBad, file.path + ": there is no token for " + what)
        .Where(file.path)
        .Fix("give the files of one tokenizer, as transformers saves them");
  };

  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto letter = static_cast<char>(byte);
    const auto found = ids.find(std::string_view(&letter, 1));
    if (found == ids.end()) return missing("byte " + std::to_string(byte));
    made.of_byte_[byte] = found->second;
  }

  for (uint32_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    const auto a = ids.find(left), b = ids.find(right), both = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || both == ids.end())
      return missing("merge " + std::to_string(rank));
    made.merges_.emplace(KeyOf(a->second, b->second), Merge{rank, both->second});
  }

  const auto end = ids.find(kEndOfText);
  if (end != ids.end()) made.end_of_text_ = end->second;
  return made;
}

std::string_view BpeTokenizer::Bytes(uint64_t id) const {
  return id < tokens_.size() ? std::string_view(tokens_[id]) : std::string_view();
}

void BpeTokenizer::Encode(std::string_view text, std::vector<uint32_t>* ids) {
  std::string prefixed;
  if (prefix_space_ && !text.empty() && text.front() != ' ') {
    prefixed = " " + std::string(text);
    text = prefixed;
  }

  // The next position of each added token, searched again once it has been passed.
  std::vector<size_t> next(added_.size(), 0);
  for (size_t at = 0;;) {
    size_t nearest = std::string_view::npos, which = 0;
    for (size_t i = 0; i < added_.size(); ++i) {
      if (next[i] != std::string_view::npos && (next[i] < at || at == 0))
        next[i] = text.find(added_[i].text, at);
      if (next[i] < nearest) {
        nearest = next[i];
        which = i;
      }
    }

    EncodePlain(text.substr(at, nearest == std::string_view::npos ? nearest : nearest - at), ids);
    if (nearest == std::string_view::npos) return;
    ids->push_back(added_[which].id);
    at = nearest + added_[which].text.size();
  }
}

void BpeTokenizer::EncodePlain(std::string_view text, std::vector<uint32_t>* ids) {
  while (!text.empty()) {
    const std::string_view valid = ValidStart(text);
    for (size_t begin = 0; begin < valid.size();) {
      const size_t end = pattern_->EndOf(valid, begin);
      EncodePiece(valid.substr(begin, end - begin), ids);
      begin = end;
    }

    text.remove_prefix(valid.size());
    size_t bad = 0;
    while (bad < text.size() && CharacterBytes(text.substr(bad)) == 0) ++bad;
    EncodePiece(text.substr(0, bad), ids);
    text.remove_prefix(bad);
  }
}

void BpeTokenizer::EncodePiece(std::string_view piece, std::vector<uint32_t>* ids) {
  if (piece.empty()) return;
  auto found = known_.find(std::string(piece));
  if (found == known_.end()) {
    if (known_.size() == kKnownMax) known_.clear();
    found = known_.emplace(piece, Merged(piece)).first;
  }
  ids->insert(ids->end(), found->second.begin(), found->second.end());
}

const BpeTokenizer::Merge* BpeTokenizer::MergeOf(uint32_t left, uint32_t right) const {
  const auto found = merges_.find(KeyOf(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// A token of a piece that is being merged, in a list of the remaining ones.
struct BpeTokenizer::Symbol {
  uint32_t id = 0;
  int64_t previous = -1, next = -1;  // -1: none
  bool gone = false;                 // merged into the previous one
};

// Merges the pair of the lowest rank, the leftmost of equal ones, until no pair has a merge. A
// priority queue holds all pairs, so that a piece of n bytes takes n log n steps.
std::vector<uint32_t> BpeTokenizer::Merged(std::string_view piece) const {
  struct Pair {
    uint32_t rank;
    size_t left;
    uint32_t left_id, right_id;  // at insertion; a pair whose ids have changed is stale
    bool operator>(const Pair& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  std::vector<Symbol> symbols(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    symbols[i].id = of_byte_[static_cast<uint8_t>(piece[i])];
    symbols[i].previous = static_cast<int64_t>(i) - 1;
    symbols[i].next = i + 1 < piece.size() ? static_cast<int64_t>(i) + 1 : -1;
  }

  const auto offer = [&](int64_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const Symbol& b = symbols[static_cast<size_t>(a.next)];
    if (const Merge* merge = MergeOf(a.id, b.id))
      pairs.push({merge->rank, static_cast<size_t>(left), a.id, b.id});
  };

  for (size_t i = 0; i < piece.size(); ++i) offer(static_cast<int64_t>(i));

  while (!pairs.empty()) {
    const Pair pair = pairs.top();
    pairs.pop();
    Symbol& left = symbols[pair.left];
    if (left.gone || left.next < 0 || left.id != pair.left_id) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != pair.right_id) continue;

    left.id = MergeOf(left.id, right.id)->id;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0)
      symbols[static_cast<size_t>(left.next)].previous = static_cast<int64_t>(pair.left);
    offer(left.previous);
    offer(static_cast<int64_t>(pair.left));
  }

  std::vector<uint32_t> ids;
  for (const Symbol& symbol : symbols) {
    if (!symbol.gone) ids.push_back(symbol.id);
  }
  return ids;
}

}  // namespace tidepool::trainer
