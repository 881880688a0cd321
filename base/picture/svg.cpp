#include "base/picture/svg.h"

#include "base/units.h"

namespace tidepool {

std::string InPage(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<'   ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '&' ? "&amp;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  }
  return out;
}

std::string Place(double value) {
  std::string text = FormatFixed(value, 2);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Across(double share) {
  return Place(100 * share) + "%";
}

std::string SvgRect(const std::string& kind, const SvgBox& box, const std::string& title) {
  std::string rect = "<rect class=\"" + kind + "\"";
  if (box.x != "0") rect += " x=\"" + box.x + "\"";
  rect += " width=\"" + box.width + "\"";
  if (box.y != 0) rect += " y=\"" + Place(box.y) + "\"";
  rect += " height=\"" + Place(box.height) + "\"";
  return title.empty() ? rect + "/>" : rect + "><title>" + InPage(title) + "</title></rect>";
}

std::string SvgText(const std::string& kind, const std::string& x, double y,
                    const std::string& text) {
  return "<text" + (kind.empty() ? "" : " class=\"" + kind + "\"") + " x=\"" + x + "\" y=\"" +
         Place(y) + "\">" + InPage(text) + "</text>";
}

std::string SvgVertical(const std::string& kind, const std::string& x, double from, double to) {
  return "<line class=\"" + kind + "\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"" + Place(from) +
         "\" y2=\"" + Place(to) + "\"/>";
}

std::string SvgHorizontal(const std::string& kind, double y) {
  return "<line class=\"" + kind + "\" x1=\"0\" x2=\"100%\" y1=\"" + Place(y) + "\" y2=\"" +
         Place(y) + "\"/>";
}

}  // namespace tidepool
