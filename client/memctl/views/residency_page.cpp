#include "client/memctl/views/residency_page.h"

#include <algorithm>

#include "base/picture/palette.h"
#include "base/units.h"
#include "client/memctl/page/page_files.h"

namespace tidepool::client {
namespace {

constexpr double kFileWidth = 960, kStripe = 22, kLine = 18, kApart = 8, kMargin = 12;
constexpr const char* kShell = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>)";

std::string HeadOf(const ResidencyJob& job) {
  return "job " + job.name + ", " + job.state +
         (job.phase.empty() || job.phase == job.state ? "" : ", " + job.phase) + ", step " +
         std::to_string(job.version);
}

// The number of cells or chunks, and the chunks per cell if there are several.
std::string CellsOf(const ResidencyJob& job) {
  if (!job.columns.empty()) return std::to_string(job.columns.size()) + " cells; point at one";
  const size_t fold = FoldOf(job.chunks, kCellsMax);
  std::string text =
      std::to_string(job.chunks) + " chunks of up to " + FormatBytes(job.chunk_bytes_max);
  if (fold > 1) text += "; a cell is " + std::to_string(fold) + " chunks";
  return text;
}

// Builds an SVG file from top to bottom. Horizontal positions are shares of the width.
class PictureFile {
 public:
  void AddJob(const ResidencyJob& job) {
    Line(HeadOf(job), "");
    Line("", CellsOf(job));
    const std::string ruler = Ruler(job, "y=\"" + Place(y_) + "\"");
    if (!ruler.empty()) y_ += 16;
    svg_ += ruler + "\n";

    for (const ResidencyRow& row : job.rows) {
      Line(LabelOf(row), UseOf(row));
      svg_ += Stripe(row, {kStripe, "y=\"" + Place(y_) + "\"", job.columns}) + "\n";
      y_ += kStripe + kApart;
    }
    y_ += 2 * kApart;
  }

  // Two entries per line fit the narrowest picture.
  void AddKey(const std::vector<KeyEntry>& key) {
    for (size_t i = 0; i < key.size(); ++i) {
      const std::string x = i % 2 == 0 ? "0" : "50%";
      svg_ += "<svg x=\"" + x + "\" y=\"" + Place(y_) + "\" width=\"50%\" height=\"18\">" +
              Swatch(key[i]) + "<text x=\"22\" y=\"12\">" + InPage(key[i].text) + "</text></svg>\n";
      if (i % 2 == 1 || i + 1 == key.size()) y_ += 20;
    }
  }

  std::string Take() const {
    const double inner = y_ + kMargin;
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Place(kFileWidth) +
           "\" height=\"" + Place(inner + kMargin) + "\">\n<style>" +
           PictureStyle(PictureHome::kFile) +
           ".paper{fill:var(--card)}.inner{overflow:visible;width:calc(100% - 24px)}</style>\n"
           "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
           "<svg class=\"inner\" x=\"1.25%\" y=\"" +
           Place(kMargin) + "\" width=\"97.5%\" height=\"" + Place(inner) + "\">\n" + svg_ +
           "</svg>\n</svg>\n";
  }

 private:
  void Line(const std::string& left, const std::string& right) {
    const bool alone = left.empty();
    if (!left.empty())
      svg_ += "<text x=\"0\" y=\"" + Place(y_ + 12) + "\">" + InPage(left) + "</text>";
    if (!right.empty()) {
      svg_ += "<text class=\"tick" + std::string(alone ? "" : " end") + "\" x=\"" +
              (alone ? "0" : "100%") + "\" y=\"" + Place(y_ + 12) + "\">" + InPage(right) +
              "</text>";
    }
    svg_ += "\n";
    y_ += kLine;
  }

  std::string svg_;
  double y_ = 0;
};

}  // namespace

std::string RenderSvg(const ResidencyView& residency) {
  PictureFile file;
  for (const ResidencyJob& job : residency.jobs) file.AddJob(job);
  file.AddKey(KeyOf(residency));
  return file.Take();
}

std::string ResidencyGrid(const ResidencyJob& job) {
  const auto cell = [](const char* kind, const std::string& text) {
    return "<span class=\"" + std::string(kind) + "\">" + text + "</span>";
  };
  std::string html = "<div class=\"map\">";
  const std::string ruler = Ruler(job);
  if (!ruler.empty())
    html += cell("label", "") + "<div class=\"picture\">" + ruler + "</div>" + cell("use", "");

  for (const ResidencyRow& row : job.rows) {
    html += cell("label", InPage(LabelOf(row))) + "<div class=\"picture\">" +
            Stripe(row, {.columns = job.columns}) + "</div>" + cell("use", InPage(UseOf(row)));
  }
  return html + "</div><p class=\"soft\">" + InPage(CellsOf(job)) + "</p>\n";
}

std::string PageHead(const std::string& title) {
  const auto files = PageFiles();
  const auto style = std::find_if(files.begin(), files.end(),
                                  [](const PageFile& each) { return each.path == "/page.css"; });
  return kShell + InPage(title) + "</title><style>\n" + PictureStyle(PictureHome::kPage) +
         std::string(style->text) + "</style></head><body>\n";
}

std::string RenderPicturePage(const ResidencyView& residency) {
  std::string html = PageHead("Residency") + "<h1>Residency</h1>\n";
  for (const ResidencyJob& job : residency.jobs) {
    html += "<section class=\"card\"><h2>" + InPage(HeadOf(job)) + "</h2>" + ResidencyGrid(job) +
            "</section>\n";
  }
  return html + Key(KeyOf(residency)) + "</body></html>\n";
}

}  // namespace tidepool::client
