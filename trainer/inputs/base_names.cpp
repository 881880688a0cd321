#include "trainer/inputs/base_names.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/system/whole_file.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kFirstLine = "tidepool base names 1\n";
constexpr const char* kNone = "-";
constexpr int64_t kSettledSeconds = 3;  // resolution of file systems' times: a second, or a tick
constexpr int64_t kNsOfSecond = 1'000'000'000;

std::string TextOf(const FileStamp& stamp) {
  return std::to_string(stamp.device) + " " + std::to_string(stamp.inode) + " " +
         std::to_string(stamp.bytes) + " " + std::to_string(stamp.modified_ns) + " " +
         std::to_string(stamp.changed_ns);
}

std::string SealOf(const std::string& text) {
  return "seal " + HexOf(HashOf(std::as_bytes(std::span(text)))) + "\n";
}

std::optional<ContentHash> HashFrom(const std::string& digits) {
  ContentHash hash;
  if (digits.size() != 2 * hash.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digits.size(); ++i) {
    const char c = digits[i];
    const bool is_letter = c >= 'a' && c <= 'f';
    if (!is_letter && (c < '0' || c > '9')) return std::nullopt;
    const auto digit = static_cast<uint8_t>(is_letter ? c - 'a' + 10 : c - '0');
    hash.bytes[i / 2] = hash.bytes[i / 2] << 4 | std::byte{digit};
  }
  return hash;
}

// Ranks of one machine share the run's folder: one of them makes the names while the others wait
// here. Invalid if the folder cannot be locked; then each makes its own.
UniqueFd AwaitTurn(const std::string& folder, const std::string& path) {
  mkdir(folder.c_str(), 0755);
  UniqueFd lock(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  const bool ours = lock.valid() && flock(lock.get(), LOCK_EX) == 0;
  return ours && !TP_PLANTED("trainer.base_hashed_by_each") ? std::move(lock) : UniqueFd();
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

BaseNames::BaseNames(std::shared_ptr<const FrozenBase> base, const std::string& folder,
                     int64_t wall_seconds)
    : base_(std::move(base)),
      folder_(folder),
      path_(folder.empty() ? "" : folder + "/" + kBaseNamesFile),
      stamp_(base_->file().Stamp()) {
  const int64_t last_ns = std::max(stamp_.modified_ns, stamp_.changed_ns);
  is_settled_ = stamp_ != FileStamp() && last_ns / kNsOfSecond + kSettledSeconds <= wall_seconds;
  if (is_settled_ && !path_.empty()) Recall();
}

void BaseNames::Recall() {
  const std::string all = ReadText(path_);
  const size_t seal = all.rfind("seal ");
  if (seal == std::string::npos || all.substr(seal) != SealOf(all.substr(0, seal))) return;

  std::istringstream text(all.substr(0, seal));
  std::string line, word, digits;
  const auto is_next = [&text, &line](const std::string& expected) {
    return std::getline(text, line) && line == expected;
  };

  if (!std::getline(text, line) || line + "\n" != kFirstLine) return;
  const bool is_of_file = is_next("stamp " + TextOf(stamp_));
  if (!is_of_file && !TP_PLANTED("trainer.changed_base_recalled")) return;
  if (!is_next("layout " + HexOf(base_->HashLayout()))) return;
  if (!(text >> word >> digits) || word != "file") return;
  const std::optional<ContentHash> file = HashFrom(digits);

  std::vector<ContentHash> chunks;
  while (text >> word >> digits) {
    const std::optional<ContentHash> chunk = HashFrom(digits);
    if (word != "chunk" || !chunk) return;
    chunks.push_back(*chunk);
  }
  if (chunks.size() != base_->chunks()) return;
  chunks_ = std::move(chunks);
  file_ = file;
}

Result<std::vector<ContentHash>> BaseNames::Chunks() {
  if (!chunks_.empty()) return chunks_;
  const UniqueFd turn = is_settled_ && !path_.empty() ? AwaitTurn(folder_, path_) : UniqueFd();
  if (turn.valid()) Recall();  // the previous holder may have made them
  if (!chunks_.empty()) return chunks_;

  TP_POINT("trainer.base_hashed");
  TP_ASSIGN_OR_RETURN(chunks_, base_->HashChunks());
  is_settled_ = is_settled_ && base_->file().Stamp() == stamp_;
  if (turn.valid()) Remember();
  return chunks_;
}

// Called after the adapters are trained. A file whose stamp has changed may still have the same
// bytes: a hard link changes it, too.
Result<ContentHash> BaseNames::File() {
  if (file_) return *file_;
  TP_ASSIGN_OR_RETURN(const std::vector<ContentHash> trained_over, Chunks());
  TP_ASSIGN_OR_RETURN(const ContentHash hash, base_->file().HashFile());

  if (base_->file().Stamp() != stamp_ || !is_settled_) {
    TP_ASSIGN_OR_RETURN(const std::vector<ContentHash> now, base_->HashChunks());
    if (now != trained_over) {
      return Status(ErrorId::kDataBad, "the base was changed while adapters were trained over it")
          .Where(base_->file().path());
    }
  }

  file_ = hash;
  return hash;
}

std::string BaseNames::FileOrNothing() {
  const Result<ContentHash> hash = File();
  if (!hash.ok())
    LogWarn("the adapters are saved without the hash of their base",
            {{"why", hash.status().Line()}});
  return hash.ok() ? HexOf(hash.value()) : "";
}

std::string BaseNames::Text() const {
  std::string text = kFirstLine;
  text += "stamp " + TextOf(stamp_) + "\nlayout " + HexOf(base_->HashLayout()) + "\nfile " +
          (file_ ? HexOf(*file_) : kNone) + "\n";
  for (const ContentHash& chunk : chunks_) text += "chunk " + HexOf(chunk) + "\n";
  return text + SealOf(text);
}

void BaseNames::Remember() const {
  if (path_.empty() || !is_settled_ || chunks_.empty() || base_->file().Stamp() != stamp_) return;
  const std::string text = Text();
  if (ReadText(path_) != text) static_cast<void>(WriteWholeFile(path_, text));
}

}  // namespace tidepool::trainer
