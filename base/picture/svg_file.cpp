#include "base/picture/svg_file.h"

#include <algorithm>

#include "base/picture/palette.h"
#include "base/picture/svg.h"

namespace tidepool {
namespace {

constexpr double kMargin = 12, kLine = 18, kHeadLine = 20, kKeyLine = 20;
// Letters of a line that fit a picture of 420 pixels.
constexpr size_t kHeadLetters = 40, kLetters = 56;

// The text in lines of so many letters, broken at spaces.
std::vector<std::string> LinesOf(const std::string& text, size_t letters) {
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > letters)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines;
}

}  // namespace

void SvgFile::AddLines(const std::string& kind, const std::string& text, size_t letters,
                       double line) {
  for (const std::string& part : LinesOf(text, letters))
    Add(SvgText(kind, "0", y_ + line - 6, part), line);
}

void SvgFile::AddTitle() {
  AddLines("headline", title_, kHeadLetters, kHeadLine);
}

void SvgFile::AddWords(const std::string& text) {
  AddLines("tick", text, kLetters, kLine);
}

void SvgFile::AddLine(const std::string& left, const std::string& right) {
  std::string line;
  if (!left.empty()) line += SvgText("", "0", y_ + 12, left);
  if (!right.empty())
    line += left.empty() ? SvgText("tick", "0", y_ + 12, right)
                         : SvgText("tick end", "100%", y_ + 12, right);
  Add(line, kLine);
}

void SvgFile::AddKey(const std::vector<KeyEntry>& key) {
  for (size_t i = 0; i < key.size(); ++i) {
    const bool ends_line = i % 2 == 1 || i + 1 == key.size();
    Add("<svg x=\"" + std::string(i % 2 == 0 ? "0" : "50%") + "\" y=\"" + Place(y_) +
            "\" width=\"50%\" height=\"18\">" + Swatch(key[i]) +
            SvgText("", "22", 12, key[i].text) + "</svg>",
        ends_line ? kKeyLine : 0);
  }
}

void SvgFile::Add(const std::string& elements, double height) {
  svg_ += elements + "\n";
  y_ += height;
}

std::string SvgFile::Take(double width) const {
  const double inner = y_ + kMargin;
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Place(width) + "\" height=\"" +
         Place(inner + kMargin) +
         "\" role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">" + InPage(title_) +
         "</title>\n<desc id=\"desc\">" + InPage(description_) + "</desc>\n<style>" +
         PictureStyle(PictureHome::kFile) + "</style>\n" +
         SvgRect("ink-card", {.height = inner + kMargin}) +
         "\n<svg class=\"inner\" x=\"1.25%\" y=\"" + Place(kMargin) +
         "\" width=\"97.5%\" height=\"" + Place(inner) + "\">\n" + svg_ + "</svg>\n</svg>\n";
}

}  // namespace tidepool
