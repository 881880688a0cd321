// Stripes: where the chunks of a job are, a cell for each, as letters and as parts of pictures.
//
// One thread; pure functions. A picture is for a page or a file with PictureStyle; its positions
// are shares of its width, so that the same text fits any.
#pragma once

#include <string>
#include <vector>

#include "base/picture/chart.h"
#include "client/admin/views.h"

namespace tidepool::client {

inline constexpr size_t kCellsMax = 240;  // of a picture; more chunks share one

// How many chunks share a cell where there is room for so many cells.
size_t FoldOf(size_t chunks, size_t cells);
// One letter for `fold` chunks: what moves matters more than what rests. An rCache cell that holds
// only some of its chunks is 'c'.
std::string Folded(const std::string& letters, size_t fold);
// A smaller number where a letter goes before another one in Folded.
size_t PriorityOf(char letter);

// "rank 1 rCache", "host pool", and what of it is used.
std::string LabelOf(const ResidencyRow& row);
std::string UseOf(const ResidencyRow& row);

// How a stripe is drawn.
struct StripeForm {
  double height = 22;                      // pixels; below 12 there are neither letters nor borders
  std::string place{};                     // "x=... y=..." of the <svg>
  std::vector<ResidencyColumn> columns{};  // what cells are, for titles; empty: chunks
};
// A row, as one <svg> that is as wide as its room.
std::string Stripe(const ResidencyRow& row, const StripeForm& form);
// The numbers of chunks above it: 14 pixels high. Empty where cells are no chunks.
std::string Ruler(const ResidencyJob& job, const std::string& place = "");

// What letters mean: the server's legend, and what '-' is where it says nothing of it.
std::vector<KeyEntry> KeyOf(const ResidencyView& residency);

}  // namespace tidepool::client
