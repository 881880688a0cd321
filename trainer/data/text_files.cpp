#include "trainer/data/text_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "trainer/data/repeat_finder.h"

namespace tidepool::trainer {
namespace {

namespace fs = std::filesystem;

// For all files together: about 200 MB of tables; beyond that, shingles are sampled by hash.
constexpr uint64_t kShinglesKeptMax = 4'000'000;

Status TooMuch(const std::string& path) {
  return Status(ErrorId::kDataBad, "'" + path + "' holds more than " +
                                       std::to_string(kTextBytesMax >> 30) + " GiB of text")
      .Fix("tokenise it into a file of llm.c's or nanoGPT's form, which is read piece by piece");
}

Status Unreadable(const std::string& path, const std::string& why) {
  return Status(ErrorId::kFileUnreadable, "'" + path + "' cannot be read").Why(why);
}

// Sorted paths of the regular files; `own` counts the run's own.
Result<std::vector<std::string>> ListFiles(const std::string& folder, const OwnOutputs& outputs,
                                           uint64_t* own) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);

  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    if (hidden && entry->is_directory(error)) entry.disable_recursion_pending();
    if (hidden || !fs::is_regular_file(entry->symlink_status(error))) continue;
    if (outputs.Has(entry->path().lexically_relative(folder).string())) {
      ++*own;
    } else {
      paths.push_back(entry->path().string());
    }
  }

  if (error) return Unreadable(folder, error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool IsText(const std::string& bytes) {
  return !bytes.empty() && bytes.find('\0') == std::string::npos;
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return Unreadable(path, error.message());
  if (size > kTextBytesMax) return TooMuch(path);

  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::string text(size, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  if (!stream)
    return Unreadable(path, errno != 0 ? std::strerror(errno) : "it is shorter than its size says");
  return text;
}

Result<TextFolder> ReadTextFiles(const std::string& folder, const OutputPlaces& outputs) {
  std::vector<TextFile> files;
  TextFolder result;
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                      ListFiles(folder, OwnOutputs(folder, outputs), &result.own));

  uint64_t bytes = 0;
  for (const std::string& path : paths) {
    TP_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
    if (!IsText(text)) {
      ++result.skipped;
      continue;
    }
    bytes += text.size();
    if (bytes > kTextBytesMax) return TooMuch(folder);
    files.push_back({path, std::move(text)});
  }

  if (files.empty()) {
    return Status(ErrorId::kDataBad, "'" + folder +
                                         "' holds no text: " + std::to_string(paths.size()) +
                                         " files, all of them empty or binary");
  }

  constexpr uint64_t kBytesPerWord = 6;
  RepeatFinder finder(1 + bytes / kBytesPerWord / kShinglesKeptMax);
  for (TextFile& file : files) {
    if (finder.IsRepeat(file.text)) {
      result.repeats.push_back(file.path);
    } else {
      result.kept.push_back(std::move(file));
    }
  }
  return result;
}

}  // namespace tidepool::trainer
