#include <algorithm>

#include "base/units.h"
#include "base/text/plural.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/stripes.h"
#include "client/memctl/views/table.h"

namespace tidepool::client {
namespace {

constexpr size_t kLabelWidth = 14;
constexpr size_t kUsedWidth = 25;  // minimum of the column "used / limit"
constexpr size_t kColumnsMin = 10;
constexpr size_t kExpertLines = 8;  // of a job; more ranges are counted

// ANSI colour of a state letter; null for the terminal's own.
const char* ColorOf(char letter) {
  switch (letter) {
    case 'C':
    case 'c': return "\033[32m";  // green: at a rank
    case '>':
    case '<': return "\033[36m";  // cyan: between a rank and the pool
    case 'g':
    case 'G':
      return "\033[33m";  // yellow: gradients
    // States in flight, or not on the host.
    case 'O':
    case 'A': return "\033[35m";  // magenta: the optimizer's
    case 'U':
    case 'W':
    case 'w':
    case 'N':
      return "\033[36m";  // cyan: on a GPU, on NVMe
    // States at rest.
    case '-':
    case '=': return "\033[34m";  // blue: read only
    case '_': return "\033[2m";   // dim: nothing there yet
    default: return nullptr;
  }
}

std::string Colored(const std::string& letters, const Style& style) {
  if (!style.color) return letters;
  std::string out;
  const char* current = nullptr;
  for (const char letter : letters) {
    const char* color = ColorOf(letter);
    if (color != current) {
      if (current != nullptr) out += "\033[0m";
      if (color != nullptr) out += color;
      current = color;
    }

    out += letter;
  }
  return current == nullptr ? out : out + "\033[0m";
}

// Chunk numbers above every tenth column.
std::string Ruler(size_t columns, size_t fold) {
  std::string ruler;
  for (size_t column = 0; column < columns; column += 10) {
    const std::string number = std::to_string(column * fold);
    if (ruler.size() > column || column + number.size() > columns + 2) continue;  // no room
    ruler += std::string(column - ruler.size(), ' ') + number;
  }
  return ruler;
}

std::string Padded(std::string text, size_t width) {
  const size_t has = DisplayWidth(text);
  return has < width ? text + std::string(width - has, ' ') : text;
}

// "C fetched   . resident ...", broken into lines of at most style.width.
void AppendLegend(const ResidencyView& residency, bool folded, const Style& style, Lines* lines) {
  std::vector<std::string> keys;
  for (const auto& [letter, name] : residency.legend)
    keys.push_back(std::string(1, letter) + " " + Printable(name));
  if (folded) keys.push_back("c some held");

  std::string line;
  for (const std::string& key : keys) {
    if (!line.empty() && line.size() + 3 + key.size() > style.width) {
      lines->push_back(line);
      line.clear();
    }
    line += (line.empty() ? "" : "   ") + key;
  }
  lines->push_back(line);
}

// "backward of micro-batch 2/4: 7/20 chunks"; leaves out what the state already says.
std::string ProgressOf(const ResidencyJob& job) {
  if (job.phase.empty()) return "";
  std::string text = job.phase == job.state ? "" : " " + Printable(job.phase);
  if (job.micro_batches > 1)
    text += " of micro-batch " + std::to_string(job.micro_batch) + "/" +
            std::to_string(job.micro_batches);
  if (job.phase == "forward" || job.phase == "ending") return text;
  return text + ": " + std::to_string(job.chunks_done) + "/" + std::to_string(job.chunks) +
         " chunks";
}

std::string TitleOf(const ResidencyJob& job, size_t fold) {
  std::string title = "job " + Printable(job.name) + " (" + std::to_string(job.id) + ")   " +
                      Printable(job.state) + ", step " + std::to_string(job.version) +
                      ProgressOf(job) + "   " + Counted(job.chunks, "chunk") + " of up to " +
                      FormatBytes(job.chunk_bytes_max);
  if (job.step_seconds > 0) title += "   " + FormatDuration(job.step_seconds) + " a step";
  if (fold > 1) title += "   1 column = " + std::to_string(fold) + " chunks";
  return title;
}

// A line for each range of chunks with experts: where they are, and whether they are in use.
void AppendExperts(const ResidencyJob& job, Lines* lines) {
  for (size_t i = 0; i < std::min(job.experts.size(), kExpertLines); ++i) {
    const ResidencyExperts& range = job.experts[i];
    const uint64_t chunks = range.last_chunk - range.first_chunk + 1;
    const std::string where = chunks == 1 ? "chunk " + std::to_string(range.first_chunk)
                                          : "chunks " + std::to_string(range.first_chunk) + "-" +
                                                std::to_string(range.last_chunk);

    lines->push_back(Printable(range.layer) + ": " +
                     ExpertsText(range.first_expert, range.last_expert) + " in " + where + ", " +
                     std::to_string(range.chunks_fetched) + " of " + Counted(chunks, "chunk") +
                     " fetched in this step or the last");
  }

  if (job.experts.size() > kExpertLines) {
    lines->push_back("and experts in " + Counted(job.experts.size() - kExpertLines, "more range") +
                     " of chunks: --by expert");
  }
}

// Returns the number of chunks per column.
size_t AppendJob(const ResidencyJob& job, const Style& style, Lines* lines) {
  size_t label_width = kLabelWidth, used_width = kUsedWidth;
  for (const ResidencyRow& row : job.rows) {
    label_width = std::max(label_width, LabelOf(row).size() + 1);
    used_width = std::max(used_width, UseOf(row).size() + 2);
  }
  const size_t room = style.width > label_width + used_width + kColumnsMin
                          ? style.width - label_width - used_width
                          : kColumnsMin;
  const size_t fold = FoldOf(job.chunks, room);
  const size_t columns = DivideUp(job.chunks, fold);
  // Nine columns at least, so that the heading of the next column never touches the ruler.
  const size_t picture_width = std::max<size_t>(columns, 9) + 2;
  lines->push_back(TitleOf(job, fold));
  if (style.header)
    lines->push_back(Padded("", label_width) + Padded(Ruler(columns, fold), picture_width) +
                     "used / limit");
  for (const ResidencyRow& row : job.rows) {
    const std::string letters = Folded(row.letters, fold);
    lines->push_back(Padded(LabelOf(row), label_width) + Colored(letters, style) +
                     std::string(picture_width - columns, ' ') + UseOf(row));
  }

  if (style.header && job.fetches > 0) {
    lines->push_back(
        "last step: " + Counted(job.fetches, "fetch") + ", " + FormatBytes(job.bytes_fetched) +
        " to ranks; " + std::to_string(job.fetches_waited) + " waited for their update" +
        (job.fetch_wait_seconds > 0 ? ", " + FormatDuration(job.fetch_wait_seconds) + " together"
                                    : ""));
  }
  if (style.header) AppendExperts(job, lines);
  return fold;
}

const char* TitleBy(const std::string& by) {
  return by == "layer" ? "LAYER" : by == "expert" ? "EXPERT" : "TENSOR";
}

// A line per layer, expert or tensor: a letter per rank, then those of the other rows.
void AppendTable(const std::string& by, const ResidencyJob& job, const Style& style, Lines* lines) {
  const bool by_expert = by == "expert";
  std::vector<Table::Column> titles{{TitleBy(by)}, {"CHUNKS", true}, {"BYTES", true}};
  if (by_expert) titles.push_back({"FETCHED IN", true});
  titles.push_back({"RCACHES"});
  for (const ResidencyRow& row : job.rows) {
    if (!row.place.empty()) titles.push_back({row.place == "NVMe" ? "NVME" : "HOST POOL"});
  }

  Table table(titles);
  for (size_t i = 0; i < job.columns.size(); ++i) {
    const ResidencyColumn& column = job.columns[i];
    std::string ranks;
    std::vector<std::string> places;
    for (const ResidencyRow& row : job.rows) {
      if (row.place.empty()) {
        ranks += row.letters[i];
      } else {
        places.emplace_back(1, row.letters[i]);
      }
    }

    std::vector<std::string> cells{Printable(column.name), std::to_string(column.chunks),
                                   FormatBytes(column.bytes)};
    const std::string step = std::to_string(column.fetched_step);
    if (by_expert) cells.push_back(column.fetched_step == 0 ? "-" : "step " + step);
    cells.push_back(ranks.empty() ? "-" : ranks);
    cells.insert(cells.end(), places.begin(), places.end());
    table.Add(std::move(cells));
  }
  lines->push_back(TitleOf(job, 1));
  const Lines rows = table.Lines(style.header);
  lines->insert(lines->end(), rows.begin(), rows.end());
}

// "188 MiB: 7 ., 1 O" for the rows of one kind; sums the letters of rCaches over the ranks.
std::string SumsOf(const ResidencyJob& job, const std::string& place) {
  std::string text, bytes;
  std::vector<std::pair<char, uint64_t>> sums;
  for (const ResidencyRow& row : job.rows) {
    if (row.place != place) continue;
    if (!place.empty()) bytes = FormatBytes(row.bytes_used) + ": ";
    for (const auto& [letter, count] : row.chunks) {
      const auto of_letter = [letter = letter](const auto& sum) { return sum.first == letter; };
      const auto at = std::find_if(sums.begin(), sums.end(), of_letter);
      at == sums.end() ? void(sums.emplace_back(letter, count)) : void(at->second += count);
    }
  }

  std::sort(sums.begin(), sums.end(),
            [](const auto& a, const auto& b) { return PriorityOf(a.first) < PriorityOf(b.first); });
  for (const auto& [letter, count] : sums)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + letter;
  return text.empty() ? "-" : bytes + text;
}

Lines TableByJob(const ResidencyView& residency, const Style& style) {
  Table table({{"ID", true},
               {"JOB"},
               {"STATE"},
               {"STEP", true},
               {"CHUNKS", true},
               {"RCACHES"},
               {"HOST POOL"},
               {"NVME"}});

  for (const ResidencyJob& job : residency.jobs) {
    table.Add({std::to_string(job.id), Printable(job.name), Printable(job.state) + ProgressOf(job),
               std::to_string(job.version), std::to_string(job.chunks), SumsOf(job, ""),
               SumsOf(job, "host pool"), SumsOf(job, "NVMe")});
  }
  Lines lines = table.Lines(style.header);
  if (!residency.jobs.empty() && style.header) AppendLegend(residency, false, style, &lines);
  return lines;
}

}  // namespace

Lines RenderResidency(const ResidencyView& residency, const Style& style) {
  if (residency.by == "job") return TableByJob(residency, style);
  Lines lines;
  bool folded = false;
  for (const ResidencyJob& job : residency.jobs) {
    if (!lines.empty()) lines.emplace_back();
    if (residency.by == "chunk") {
      folded |= AppendJob(job, style, &lines) > 1;
    } else {
      AppendTable(residency.by, job, style, &lines);
    }
  }

  if (!residency.jobs.empty() && style.header) AppendLegend(residency, folded, style, &lines);
  return lines;
}

}  // namespace tidepool::client
