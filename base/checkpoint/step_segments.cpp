// Frames and names of a log's segments (step_log.h).
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/checkpoint/read_whole.h"
#include "base/checkpoint/step_log.h"
#include "base/formats/crc32c.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kNameStart = "steps-", kNameEnd = ".log";
constexpr const char* kText = "tidepool-step-log 1\nrun %016llx\n";

uint32_t HeadCrc(const StepFrame& frame) {
  return Crc32c({reinterpret_cast<const std::byte*>(&frame), offsetof(StepFrame, head_crc)});
}

}  // namespace

void Close(StepFrame* frame) {
  frame->magic = kStepFrameMagic;
  frame->head_crc = HeadCrc(*frame);
}

bool IsWhole(const StepFrame& frame) {
  return frame.magic == kStepFrameMagic && frame.head_crc == HeadCrc(frame) &&
         frame.bytes <= kStepFrameBytesMax;
}

std::string SegmentName(uint64_t base, uint64_t run) {
  char name[64];
  std::snprintf(name, sizeof name, "steps-%08llu-%016llx.log",
                static_cast<unsigned long long>(base), static_cast<unsigned long long>(run));
  return name;
}

Result<std::vector<StepSegment>> FindSegments(const std::string& folder) {
  std::vector<StepSegment> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entry != fs::end(entry); entry.increment(error)) {
    const std::string name = entry->path().filename();

    unsigned long long base = 0, run = 0;
    if (!name.starts_with(kNameStart) || !name.ends_with(kNameEnd) ||
        std::sscanf(name.c_str(), "steps-%llu-%llx.log", &base, &run) != 2 ||
        name != SegmentName(base, run))
      continue;
    found.push_back({entry->path(), base, run});
  }

  if (error)
    return Status(ErrorId::kFileUnreadable, "cannot be listed: " + error.message()).Where(folder);
  std::sort(found.begin(), found.end(), [](const StepSegment& a, const StepSegment& b) {
    return std::pair(a.base, a.run) < std::pair(b.base, b.run);
  });
  return found;
}

std::string StepLogText(uint64_t run) {
  char text[64];
  std::snprintf(text, sizeof text, kText, static_cast<unsigned long long>(run));
  return text;
}

uint64_t StepLogRunOf(const std::string& checkpoint) {
  Result<std::string> text = ReadWhole(checkpoint + "/" + kStepLogFile);
  unsigned long long run = 0;
  if (!text.ok() || std::sscanf(text->c_str(), kText, &run) != 1) return 0;
  return text.value() == StepLogText(run) ? run : 0;
}

}  // namespace tidepool
