// Stripes: the residency of a job's chunks, one cell per chunk, as letters and as SVG.
//
// One thread; pure functions. The page or file must contain PictureStyle. Horizontal positions are
// shares of the width, so that the same text fits any width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/picture/chart.h"
#include "client/admin/views.h"

namespace tidepool::client {

inline constexpr size_t kCellsMax = 240;  // per stripe; more chunks share cells

// The number of chunks per cell if `cells` cells have room.
size_t FoldOf(size_t chunks, size_t cells);
// One letter per `fold` chunks; activity has priority over rest. An rCache cell that holds only
// some of its chunks is 'c'.
std::string Folded(const std::string& letters, size_t fold);
// The rank of a letter in Folded; smaller numbers win.
size_t PriorityOf(char letter);

// The name of a row ("rank 1 rCache", "host pool"), and its use ("3 held / 64 MiB").
std::string LabelOf(const ResidencyRow& row);
std::string UseOf(const ResidencyRow& row);

// The form of a stripe.
struct StripeForm {
  double height = 22;                      // pixels; below 12 without letters and borders
  std::string place{};                     // "x=... y=..." of the <svg>
  std::vector<ResidencyColumn> columns{};  // names of the cells, for titles; empty: chunks
};
// The names of a job's cells, for titles: its columns, or with a cell per chunk those of a model
// with experts ("chunk 7, expert 4 of h.3"); empty where cells need no names.
std::vector<ResidencyColumn> CellNames(const ResidencyJob& job);
// "expert 4", "experts 0-3".
std::string ExpertsText(uint64_t first, uint64_t last);
// A row as one <svg> of full width.
std::string Stripe(const ResidencyRow& row, const StripeForm& form);
// The chunk numbers above a stripe, 14 pixels high. Empty if cells are not chunks.
std::string Ruler(const ResidencyJob& job, const std::string& place = "");

// The meaning of the letters: the server's legend, with this page's own text for '-'.
std::vector<KeyEntry> KeyOf(const ResidencyView& residency);

}  // namespace tidepool::client
