// SvgParts: elements that the trainer's pictures are made of, and the sizes that they share.
//
// Any thread; torch-free, pure. All lengths are pixels.
#pragma once

#include <string>

namespace tidepool::trainer {

// Sizes in pixels: of a picture, of the plot inside, and where title and key are.
struct PictureSizes {
  double width = 1280, left = 124, right = 24;
  double title_y = 30, axis = 44, digit = 7;

  // Width of the plot.
  constexpr double plot() const { return width - left - right; }
};
inline constexpr PictureSizes kPictureSizes;

// A rectangle, by its upper left corner.
struct SvgBox {
  double x = 0, y = 0, width = 0, height = 0;
};

// A length with two digits.
std::string SvgPixels(double value);
// One element on its own line; `kind` is its class.
std::string SvgText(const char* kind, double x, double y, const std::string& text);
std::string SvgRect(const char* kind, const SvgBox& box);
std::string SvgVerticalLine(const char* kind, double x, double from, double to);
std::string SvgHorizontalLine(const char* kind, double y, double from, double to);
// Everything before the picture's own elements: title, description, style, paper and headline.
// `style`: rules in addition to the palette's.
std::string SvgHead(const std::string& title, const std::string& description, const char* style,
                    double height);

}  // namespace tidepool::trainer
