#include "client/memctl/views/stripes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/picture/palette.h"
#include "base/units.h"

namespace tidepool::client {
namespace {

// If several chunks share a cell, it shows the leftmost of these letters: activity before rest.
constexpr const char* kPriority = "AO><gGN_C.=-";
constexpr const char* kQuiet = ".-_=";  // drawn without a letter
constexpr double kLetterRoom = 13, kBorderRoom = 5, kNumberRoom = 44, kDigit = 7;  // pixels

struct LetterInk {
  char letter;
  std::string_view ink;
};
constexpr auto kLetterInks = std::to_array<LetterInk>({{'C', "held"},
                                                       {'c', "held"},
                                                       {'>', "coming"},
                                                       {'<', "going"},
                                                       {'_', "empty"},
                                                       {'.', "resident"},
                                                       {'g', "going"},
                                                       {'G', "complete"},
                                                       {'O', "due"},
                                                       {'A', "updating"},
                                                       {'=', "frozen"},
                                                       {'N', "nvme"},
                                                       {'W', "nvme"},
                                                       {'w', "nvme"},
                                                       {'U', "coming"},
                                                       {'-', "absent"}});

std::string_view InkOf(char letter) {
  const auto found = std::find_if(kLetterInks.begin(), kLetterInks.end(),
                                  [letter](const auto& each) { return each.letter == letter; });
  return found == kLetterInks.end() ? "soft" : found->ink;
}

// The letters of a row. In an rCache '.' is a chunk that the rank does not hold; it becomes '-'.
std::string ShownLetters(const ResidencyRow& row) {
  std::string letters = row.letters;
  if (row.place.empty()) std::replace(letters.begin(), letters.end(), '.', '-');
  return letters;
}

// The number of chunks per letter: "C 2, - 10".
std::string Summary(const std::string& letters) {
  std::map<char, size_t> counts;
  for (const char letter : letters) ++counts[letter];
  std::string text;
  for (const auto& [letter, count] : counts)
    text += (text.empty() ? "" : ", ") + std::string(1, letter) + " " + std::to_string(count);
  return text;
}

// Borders between cells, and the letters in them, if the cells are wide enough.
std::string Details(const std::string& cells, double height) {
  std::string svg;
  const double count = static_cast<double>(cells.size());
  for (size_t i = 1; i < cells.size() && FitsRoom(kBorderRoom * count); ++i) {
    svg += SvgVertical("edge" + RoomClass(kBorderRoom * count),
                       Across(static_cast<double>(i) / count), 0, height);
  }

  for (size_t i = 0; i < cells.size() && FitsRoom(kLetterRoom * count); ++i) {
    if (std::strchr(kQuiet, cells[i]) != nullptr) continue;
    const char* const pale = InkOf(cells[i]) == "nvme" ? " pale" : "";
    svg += SvgText("letter" + std::string(pale) + RoomClass(kLetterRoom * count),
                   Across((static_cast<double>(i) + 0.5) / count), height / 2 + 4,
                   std::string(1, cells[i]));
  }
  return svg;
}

// The largest of 1, 5, 10, 50... that divides `number`. Not for 0, which all of them divide.
size_t RoundnessOf(size_t number) {
  size_t round = 1;
  for (size_t next = 5, factor = 2; number % next == 0; next *= factor, factor = 7 - factor)
    round = next;
  return round;
}

}  // namespace

size_t FoldOf(size_t chunks, size_t cells) {
  return std::max<size_t>(1, DivideUp(chunks, std::max<size_t>(cells, 1)));
}

size_t PriorityOf(char letter) {
  const char* at = std::strchr(kPriority, letter);
  return at == nullptr || letter == '\0' ? std::strlen(kPriority)
                                         : static_cast<size_t>(at - kPriority);
}

std::string Folded(const std::string& letters, size_t fold) {
  if (fold == 1) return letters;
  std::string out;
  for (size_t begin = 0; begin < letters.size(); begin += fold) {
    const std::string part = letters.substr(begin, fold);
    const char first = *std::min_element(
        part.begin(), part.end(), [](char a, char b) { return PriorityOf(a) < PriorityOf(b); });
    const bool mixed = part.find_first_not_of(first) != std::string::npos;
    out += first == 'C' && mixed ? 'c' : first;
  }
  return out;
}

std::string LabelOf(const ResidencyRow& row) {
  return !row.place.empty() ? row.place : "rank " + std::to_string(row.rank) + " rCache";
}

std::string UseOf(const ResidencyRow& row) {
  if (!row.place.empty()) return FormatBytes(row.bytes_used) + " / " + FormatBytes(row.bytes_limit);
  return std::to_string(row.chunks_held) + " held / " + FormatBytes(row.bytes_limit);
}

std::string ExpertsText(uint64_t first, uint64_t last) {
  const std::string number = std::to_string(first);
  return first == last ? "expert " + number : "experts " + number + "-" + std::to_string(last);
}

std::vector<ResidencyColumn> CellNames(const ResidencyJob& job) {
  const bool by_chunk = job.columns.empty() && FoldOf(job.chunks, kCellsMax) == 1;
  if (!by_chunk || job.experts.empty()) return job.columns;
  std::vector<ResidencyColumn> names(job.chunks);
  for (size_t chunk = 0; chunk < names.size(); ++chunk)
    names[chunk].name = "chunk " + std::to_string(chunk);

  for (const ResidencyExperts& range : job.experts) {
    // Else a chunk holds some of the experts, or a part of one.
    const bool one_each =
        range.last_expert - range.first_expert == range.last_chunk - range.first_chunk;
    for (size_t chunk = range.first_chunk; chunk <= range.last_chunk && chunk < names.size();
         ++chunk) {
      const uint64_t first = range.first_expert + (one_each ? chunk - range.first_chunk : 0);
      names[chunk].name +=
          ", " + ExpertsText(first, one_each ? first : range.last_expert) + " of " + range.layer;
    }
  }
  return names;
}

std::string Stripe(const ResidencyRow& row, const StripeForm& form) {
  const std::string letters = ShownLetters(row);
  const size_t fold = FoldOf(letters.size(), kCellsMax);
  const std::string cells = Folded(letters, fold);
  const double count = static_cast<double>(std::max<size_t>(cells.size(), 1));

  std::string svg = "<svg class=\"stripe\" " + form.place + " width=\"100%\" height=\"" +
                    Place(form.height) + "\" role=\"img\" aria-label=\"" +
                    InPage(Summary(row.letters)) + "\">";
  for (size_t begin = 0; begin < cells.size();) {
    size_t end = begin + 1;
    while (form.columns.empty() && end < cells.size() && cells[end] == cells[begin]) ++end;
    const std::string title =
        form.columns.size() <= begin * fold ? "" : form.columns[begin * fold].name;

    svg += SvgRect("ink-" + std::string(InkOf(cells[begin])),
                   {.x = Across(static_cast<double>(begin) / count),
                    .width = Across(static_cast<double>(end - begin) / count),
                    .height = form.height},
                   title);
    begin = end;
  }

  if (form.height < 12) return svg + "</svg>";
  svg += Details(cells, form.height);
  return svg + SvgRect("frame", {.height = form.height}) + "</svg>";
}

std::string Ruler(const ResidencyJob& job, const std::string& place) {
  if (!job.columns.empty() || job.chunks == 0) return "";
  const double count = static_cast<double>(job.chunks);
  std::string svg =
      "<svg class=\"ruler\" " + place + " width=\"100%\" height=\"14\" aria-hidden=\"true\">";

  for (size_t chunk = 0; chunk < job.chunks; ++chunk) {
    const std::string number = std::to_string(chunk);
    // Wide enough for all equally round numbers, and for this one before the right edge.
    const double apart =
        kNumberRoom * count / static_cast<double>(chunk == 0 ? job.chunks : RoundnessOf(chunk));
    const double to_end =
        kDigit * static_cast<double>(number.size()) * count / (count - static_cast<double>(chunk));
    const double need = std::max(apart, to_end);
    if (!FitsRoom(need)) continue;
    svg +=
        SvgText("tick" + RoomClass(need), Across(static_cast<double>(chunk) / count), 11, number);
  }
  return svg + "</svg>";
}

std::vector<KeyEntry> KeyOf(const ResidencyView& residency) {
  std::vector<KeyEntry> key;
  for (const auto& [letter, meaning] : residency.legend) {
    const bool quiet = std::strchr(kQuiet, letter) != nullptr;
    if (letter != '-') key.push_back({InkOf(letter), meaning, quiet ? ' ' : letter});
  }
  key.push_back({"absent", "not there"});
  return key;
}

}  // namespace tidepool::client
