#include "trainer/data/text_files.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tidepool::trainer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShingleWords = 5;
constexpr uint64_t kShinglesKeptMax = 4'000'000;  // of all files together: about 200 MB of tables; beyond that they are sampled by hash

Status TooMuch(const std::string& path) {
  return Status(ErrorId::kDataBad, "'" + path + "' holds more than " + std::to_string(kTextBytesMax >> 30) + " GiB of text")
      .Fix("tokenise it into a file of llm.c's or nanoGPT's form, which is read piece by piece");
}

Status Unreadable(const std::string& path, const std::string& why) {
  return Status(ErrorId::kFileUnreadable, "'" + path + "' cannot be read").Why(why);
}

// Paths of the regular files, sorted; those that are the run's own are counted in `own`.
Result<std::vector<std::string>> ListFiles(const std::string& folder, const OwnOutputs& outputs, uint64_t* own) {
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

// Hashes of all runs of kShingleWords words; letters' case and everything but letters and digits do not count. Only hashes that are 0
// modulo `one_of` are returned. A text of fewer words is one shingle.
std::unordered_set<uint64_t> Shingles(std::string_view text, uint64_t one_of) {
  std::unordered_set<uint64_t> shingles;
  uint64_t words[kShingleWords] = {};
  size_t count = 0;
  const auto add_shingle = [&] {
    uint64_t hash = 0;
    for (size_t i = 0; i < kShingleWords; ++i) hash = (hash ^ words[(count + i) % kShingleWords]) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
    hash ^= hash >> 32;
    if (hash % one_of == 0) shingles.insert(hash);
  };
  for (size_t i = 0; i < text.size();) {
    uint64_t word = 0xCBF29CE484222325ULL;
    const size_t begin = i;
    for (; i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0; ++i) {
      word = (word ^ static_cast<uint64_t>(std::tolower(static_cast<unsigned char>(text[i])))) * 0x100000001B3ULL;
    }
    if (i == begin) {
      ++i;
      continue;
    }
    words[count++ % kShingleWords] = word;
    if (count >= kShingleWords) add_shingle();
  }
  if (count > 0 && count < kShingleWords) add_shingle();
  return shingles;
}

// Tells, file after file, which ones repeat an earlier one.
class RepeatFinder {
 public:
  explicit RepeatFinder(uint64_t one_of) : one_of_(one_of) {}

  bool IsRepeat(std::string_view text) {
    const auto shingles = Shingles(text, one_of_);
    std::unordered_map<uint32_t, uint64_t> shared;  // earlier file -> shingles that this one shares with it
    for (const uint64_t shingle : shingles) {
      const auto found = files_with_.find(shingle);
      if (found == files_with_.end()) continue;
      for (const uint32_t file : found->second) ++shared[file];
    }
    for (const auto& [file, count] : shared) {
      if (2 * count > shingles.size()) return true;
    }
    for (const uint64_t shingle : shingles) files_with_[shingle].push_back(files_);
    ++files_;
    return false;
  }

 private:
  uint64_t one_of_;
  uint32_t files_ = 0;
  std::unordered_map<uint64_t, std::vector<uint32_t>> files_with_;
};

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
  if (!stream) return Unreadable(path, errno != 0 ? std::strerror(errno) : "it is shorter than its size says");
  return text;
}

Result<TextFolder> ReadTextFiles(const std::string& folder, const OutputPlaces& outputs) {
  std::vector<TextFile> files;
  TextFolder result;
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListFiles(folder, OwnOutputs(folder, outputs), &result.own));
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
    return Status(ErrorId::kDataBad,
                  "'" + folder + "' holds no text: " + std::to_string(paths.size()) + " files, all of them empty or binary");
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
