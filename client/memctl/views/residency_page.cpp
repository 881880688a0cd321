#include "client/memctl/views/residency_page.h"

#include <algorithm>

#include "base/picture/palette.h"
#include "base/picture/svg_file.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "client/memctl/page/page_files.h"

namespace tidepool::client {
namespace {

constexpr double kFileWidth = 960, kStripe = 22, kRuler = 16, kApart = 8;
constexpr const char* kShell = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>)";

std::string HeadOf(const ResidencyJob& job) {
  return "job " + job.name + ", " + job.state +
         (job.phase.empty() || job.phase == job.state ? "" : ", " + job.phase) + ", step " +
         std::to_string(job.version);
}

// The number of cells or chunks, and the chunks per cell if there are several.
std::string CellsOf(const ResidencyJob& job) {
  if (!job.columns.empty()) return Counted(job.columns.size(), "cell") + "; point at one";
  const size_t fold = FoldOf(job.chunks, kCellsMax);
  std::string text = Counted(job.chunks, "chunk") + " of up to " + FormatBytes(job.chunk_bytes_max);
  if (fold > 1) text += "; a cell is " + std::to_string(fold) + " chunks";
  if (fold == 1 && !job.experts.empty()) text += "; point at one for its experts";
  return text;
}

void AddJob(const ResidencyJob& job, SvgFile* file) {
  file->AddLine(HeadOf(job), "");
  file->AddLine("", CellsOf(job));
  const std::string ruler = Ruler(job, "y=\"" + Place(file->y()) + "\"");
  if (!ruler.empty()) file->Add(ruler, kRuler);

  const std::vector<ResidencyColumn> names = CellNames(job);
  for (const ResidencyRow& row : job.rows) {
    file->AddLine(LabelOf(row), UseOf(row));
    file->Add(Stripe(row, {kStripe, "y=\"" + Place(file->y()) + "\"", names}), kStripe + kApart);
  }
  file->Add("", 2 * kApart);
}

}  // namespace

std::string RenderSvg(const ResidencyView& residency) {
  SvgFile file("Residency", "Where the chunks of each job are: in which rCache, in which state.");
  for (const ResidencyJob& job : residency.jobs) AddJob(job, &file);
  file.AddKey(KeyOf(residency));
  return file.Take(kFileWidth);
}

std::string ResidencyGrid(const ResidencyJob& job) {
  const auto cell = [](const char* kind, const std::string& text) {
    return "<span class=\"" + std::string(kind) + "\">" + text + "</span>";
  };
  std::string html = "<div class=\"map\">";
  const std::string ruler = Ruler(job);
  if (!ruler.empty())
    html += cell("label", "") + "<div class=\"picture\">" + ruler + "</div>" + cell("use", "");

  const std::vector<ResidencyColumn> names = CellNames(job);
  for (const ResidencyRow& row : job.rows) {
    html += cell("label", InPage(LabelOf(row))) + "<div class=\"picture\">" +
            Stripe(row, {.columns = names}) + "</div>" + cell("use", InPage(UseOf(row)));
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
