// ResidencyPage: where chunks are, as a picture: a file of SVG, or a part of a page.
//
// One thread; pure functions.
#pragma once

#include <string>

#include "client/memctl/views/stripes.h"

namespace tidepool::client {

// The chunks of every job from left to right, a row for each place: a file of SVG of its own, which
// fits any width that its frame has, and a page with nothing but that.
std::string RenderSvg(const ResidencyView& residency);
std::string RenderPicturePage(const ResidencyView& residency);

// The rows of one job as the elements of a grid: label, stripe, what is used.
std::string ResidencyGrid(const ResidencyJob& job);
// What stands before a page's body: its title and the style of pictures and of `memctl page`.
std::string PageHead(const std::string& title);

}  // namespace tidepool::client
