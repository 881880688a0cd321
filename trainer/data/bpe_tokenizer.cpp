#include "trainer/data/bpe_tokenizer.h"

#include <algorithm>
#include <array>
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
// The ends of GPT-2, Llama 3 and Llama 2.
constexpr std::array<std::string_view, 3> kEndsOfText{"<|endoftext|>", "<|end_of_text|>", "</s>"};
constexpr std::string_view kSpaceLetter = "\xE2\x96\x81";  // U+2581, sentencepiece's space
constexpr uint32_t kNoToken = UINT32_MAX;  // of a letter that has only tokens of its bytes
constexpr size_t kKnownMax = 1 << 20;      // number of cached pieces
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
  // `code` is null if the text is no pattern.
  explicit Pattern(const char* text) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text), PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    if (code == nullptr) return;
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

  // The end of the piece that begins at `begin`: a match, or what lies before the next one.
  size_t EndOf(std::string_view text, size_t begin) const {
    const int matched = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    begin, PCRE2_NO_UTF_CHECK, found, context);
    if (matched <= 0) return text.size();
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(found);
    if (ends[0] > begin) return ends[0];
    return std::max<size_t>(ends[1],
                            begin + std::max<size_t>(1, CharacterBytes(text.substr(begin))));
  }

  pcre2_code* code = nullptr;
  pcre2_match_data* found = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

BpeTokenizer::BpeTokenizer(const TokenizerFile& file, std::unique_ptr<Pattern> pattern)
    : pattern_(std::move(pattern)),
      tokens_(file.tokens),
      added_(file.added),
      begin_of_text_(file.begins),
      prefix_(file.prefix),
      whole_pieces_(file.whole_pieces),
      of_letters_(file.of_letters) {
  // Longest first, so that it wins if several begin at one position.
  std::sort(added_.begin(), added_.end(), [](const auto& a, const auto& b) {
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
  });
}
BpeTokenizer::~BpeTokenizer() = default;
BpeTokenizer::BpeTokenizer(BpeTokenizer&&) noexcept = default;
BpeTokenizer& BpeTokenizer::operator=(BpeTokenizer&&) noexcept = default;

Result<BpeTokenizer> BpeTokenizer::Make(const TokenizerFile& file) {
  const auto unusable = [&file](const std::string& why) {
    return Status(ErrorId::kDataBad, file.path + ": " + why)
        .Where(file.path)
        .Fix("give the files of one tokenizer, as transformers saves them");
  };
  auto pattern = std::make_unique<Pattern>(file.pattern.empty() ? kPattern : file.pattern.c_str());
  if (pattern->code == nullptr) return unusable("its pattern of pieces is none of PCRE2's");

  BpeTokenizer made(file, std::move(pattern));
  std::unordered_map<std::string, uint32_t>& ids = made.wholes_;
  std::vector<bool> hidden(made.tokens_.size());  // bytes stand beside letters of the same text
  for (const uint32_t id : file.byte_ids) hidden[id] = true;
  for (uint32_t id = 0; id < made.tokens_.size(); ++id) {
    if (!hidden[id] && !made.tokens_[id].empty()) ids.emplace(made.tokens_[id], id);
  }

  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    if (!file.of_letters && found == ids.end())
      return unusable("there is no token for byte " + std::to_string(byte));
    made.of_byte_[byte] = file.of_letters ? file.byte_ids[byte] : found->second;
  }

  for (uint32_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    const auto a = ids.find(left), b = ids.find(right), both = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || both == ids.end())
      return unusable("there is no token for merge " + std::to_string(rank));
    made.merges_.emplace(KeyOf(a->second, b->second), Merge{rank, both->second});
    const std::string text = left + right;
    const size_t word = text.find_first_not_of(' ');
    made.by_words_ &= word == std::string::npos || text.find(' ', word) == std::string::npos;
  }

  for (const std::string_view end : kEndsOfText) {
    const auto found = ids.find(std::string(end));
    if (found != ids.end() && !made.end_of_text_) made.end_of_text_ = found->second;
  }
  return made;
}

std::string_view BpeTokenizer::Bytes(uint64_t id) const {
  return id < tokens_.size() ? std::string_view(tokens_[id]) : std::string_view();
}

void BpeTokenizer::Encode(std::string_view text, std::vector<uint32_t>* ids) {
  std::string prefixed;
  if (prefix_ == SpacePrefix::kText && !text.empty() && text.front() != ' ') {
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

    EncodePart(text.substr(at, nearest == std::string_view::npos ? nearest : nearest - at), at == 0,
               ids);
    if (nearest == std::string_view::npos) return;
    ids->push_back(added_[which].id);
    at = nearest + added_[which].text.size();
  }
}

// A part between added tokens.
void BpeTokenizer::EncodePart(std::string_view part, bool is_first, std::vector<uint32_t>* ids) {
  if (part.empty()) return;
  if (!of_letters_) return EncodePlain(part, ids);

  std::string text;
  for (size_t at = 0; at < part.size();) {
    const bool is_space = part.substr(at).starts_with(kSpaceLetter);
    text += is_space ? ' ' : part[at];
    at += is_space ? kSpaceLetter.size() : 1;
  }
  const bool always = prefix_ == SpacePrefix::kEachPartAlways;
  const bool unless =
      prefix_ == SpacePrefix::kEachPart || (prefix_ == SpacePrefix::kFirstPart && is_first);
  if (always || (unless && text.front() != ' ')) text.insert(text.begin(), ' ');
  EncodeWords(text, ids);
}

// Spaces and the word behind them are a piece, if no merge is longer than that.
void BpeTokenizer::EncodeWords(std::string_view text, std::vector<uint32_t>* ids) {
  while (!text.empty()) {
    const size_t word = std::min(text.find_first_not_of(' '), text.size());
    const size_t end = by_words_ ? std::min(text.find(' ', word), text.size()) : text.size();
    EncodePiece(text.substr(0, end), ids);
    text.remove_prefix(end);
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
  uint32_t id = 0;                   // kNoToken: the tokens of its bytes
  int64_t previous = -1, next = -1;  // -1: none
  bool gone = false;                 // merged into the previous one
  std::string_view bytes = {};       // of an unmerged one
};

// What merges begin with: each byte of the piece, or each letter.
std::vector<BpeTokenizer::Symbol> BpeTokenizer::SymbolsOf(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (size_t at = 0; at < piece.size();) {
    const size_t size = of_letters_ ? std::max<size_t>(1, CharacterBytes(piece.substr(at))) : 1;
    Symbol symbol{.bytes = piece.substr(at, size)};
    const auto whole = of_letters_ ? wholes_.find(std::string(symbol.bytes)) : wholes_.end();
    symbol.id = !of_letters_             ? of_byte_[static_cast<uint8_t>(piece[at])]
                : whole != wholes_.end() ? whole->second
                                         : kNoToken;

    symbols.push_back(symbol);
    at += size;
  }

  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int64_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int64_t>(i) + 1 : -1;
  }
  return symbols;
}

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

  const auto whole = whole_pieces_ ? wholes_.find(std::string(piece)) : wholes_.end();
  if (whole != wholes_.end()) return {whole->second};
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  std::vector<Symbol> symbols = SymbolsOf(piece);

  const auto offer = [&](int64_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const Symbol& b = symbols[static_cast<size_t>(a.next)];
    if (const Merge* merge = MergeOf(a.id, b.id))
      pairs.push({merge->rank, static_cast<size_t>(left), a.id, b.id});
  };

  for (size_t i = 0; i < symbols.size(); ++i) offer(static_cast<int64_t>(i));

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
    if (symbol.gone) continue;
    if (symbol.id != kNoToken) ids.push_back(symbol.id);
    for (const char byte : symbol.id == kNoToken ? symbol.bytes : std::string_view())
      ids.push_back(of_byte_[static_cast<uint8_t>(byte)]);
  }
  return ids;
}

}  // namespace tidepool::trainer
