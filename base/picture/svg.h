// Svg: the elements that all pictures are made of.
//
// Any thread; pure functions. A horizontal position is a share of the width (Across) or a number of
// pixels (Place); vertical ones are pixels. The classes are those of PictureStyle.
#pragma once

#include <string>

namespace tidepool {

// Text with its special characters escaped, for HTML and SVG.
std::string InPage(const std::string& text);
// A position or size with at most two digits after the point.
std::string Place(double value);
// A share of the width as a percentage: "12.5%".
std::string Across(double share);

// A rectangle, by its upper left corner.
struct SvgBox {
  std::string x = "0";
  double y = 0;
  std::string width = "100%";
  double height = 0;
};
// Elements of the class `kind`. A title is shown where one points at the rectangle.
std::string SvgRect(const std::string& kind, const SvgBox& box, const std::string& title = "");
std::string SvgText(const std::string& kind, const std::string& x, double y,
                    const std::string& text);
std::string SvgVertical(const std::string& kind, const std::string& x, double from, double to);
// A line over the whole width.
std::string SvgHorizontal(const std::string& kind, double y);

}  // namespace tidepool
