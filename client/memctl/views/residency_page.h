// ResidencyPage: the residency of chunks as a picture: an SVG file, or a part of a page.
//
// One thread; pure functions.
#pragma once

#include <string>

#include "client/memctl/views/stripes.h"

namespace tidepool::client {

// The chunks of every job from left to right, one row per tier or rCache: as an SVG file, which
// fits any width of its frame, and as a page with that picture alone.
std::string RenderSvg(const ResidencyView& residency);
std::string RenderPicturePage(const ResidencyView& residency);

// The rows of one job as elements of a grid: label, stripe, and used bytes or chunks.
std::string ResidencyGrid(const ResidencyJob& job);
// The start of an HTML page, up to <body>: title, and the styles of pictures and `memctl page`.
std::string PageHead(const std::string& title);

}  // namespace tidepool::client
