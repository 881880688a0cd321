#include "trainer/advice/picture/svg_parts.h"

#include "base/picture/chart.h"
#include "base/picture/palette.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

std::string Line(const char* kind, double x1, double y1, double x2, double y2) {
  return std::string("  <line class=\"") + kind + "\" x1=\"" + SvgPixels(x1) + "\" y1=\"" +
         SvgPixels(y1) + "\" x2=\"" + SvgPixels(x2) + "\" y2=\"" + SvgPixels(y2) + "\"/>\n";
}

}  // namespace

std::string SvgPixels(double value) {
  return FormatFixed(value, 2);
}

std::string SvgText(const char* kind, double x, double y, const std::string& text) {
  return std::string("  <text class=\"") + kind + "\" x=\"" + SvgPixels(x) + "\" y=\"" +
         SvgPixels(y) + "\">" + InPage(text) + "</text>\n";
}

std::string SvgRect(const char* kind, const SvgBox& box) {
  return std::string("  <rect class=\"") + kind + "\" x=\"" + SvgPixels(box.x) + "\" y=\"" +
         SvgPixels(box.y) + "\" width=\"" + SvgPixels(box.width) + "\" height=\"" +
         SvgPixels(box.height) + "\"/>\n";
}

std::string SvgVerticalLine(const char* kind, double x, double from, double to) {
  return Line(kind, x, from, x, to);
}

std::string SvgHorizontalLine(const char* kind, double y, double from, double to) {
  return Line(kind, from, y, to, y);
}

std::string SvgHead(const std::string& title, const std::string& description, const char* style,
                    double height) {
  const double width = kPictureSizes.width;
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + SvgPixels(width) +
                     " " + SvgPixels(height) + "\" width=\"" + SvgPixels(width) + "\" height=\"" +
                     SvgPixels(height) + "\" role=\"img\" aria-labelledby=\"title desc\">\n";
  text += "  <title id=\"title\">" + InPage(title) + "</title>\n";
  text += "  <desc id=\"desc\">" + InPage(description) + "</desc>\n";
  text += "  <style>\n" + PictureStyle(PictureHome::kFile) + style + "\n  </style>\n";
  text += SvgRect("paper", {0.5, 0.5, width - 1, height - 1});
  return text + SvgText("head", kPictureSizes.left, kPictureSizes.title_y, title);
}

}  // namespace tidepool::trainer
