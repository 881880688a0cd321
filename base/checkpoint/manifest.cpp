#include "base/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <span>
#include <utility>

#include "base/formats/crc32c.h"
#include "base/planted.h"

namespace tidepool {
namespace {

constexpr std::string_view kFirstLine = "tidepool-checkpoint 1";

uint32_t CrcOf(std::string_view text) {
  return Crc32c(std::as_bytes(std::span(text)));
}

std::string Hex(uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

// Parses the fields of one line, left to right.
class Fields {
 public:
  explicit Fields(std::string_view line) : rest_(line) {}
  std::string_view Word() {
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  template <typename Number>
  Number Get(int base = 10) {
    const std::string_view word = Word();
    Number number = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), number, base);
    ok_ = ok_ && read.ec == std::errc() && read.ptr == word.data() + word.size();
    return number;
  }
  std::string Rest() { return std::string(std::exchange(rest_, {})); }
  bool ok() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// True for a name that stays in its directory.
bool IsPlain(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.find('/') == std::string::npos &&
         name[0] != '.';
}

Status Bad(size_t line, const std::string& what) {
  return Status(ErrorId::kCheckpointBad, std::string(kManifestFile) + " " + what)
      .Where("line " + std::to_string(line));
}

bool TakeFile(Fields* in, Manifest* manifest) {
  ManifestFile file;
  file.bytes = in->Get<uint64_t>();
  file.head = in->Get<uint64_t>();
  file.crc = in->Get<uint32_t>(16);
  file.name = in->Rest();
  if (!IsPlain(file.name) || file.head > file.bytes) return false;
  manifest->files.push_back(std::move(file));
  return in->ok();
}

bool TakeTensor(Fields* in, Manifest* manifest) {
  ManifestTensor tensor;
  tensor.crc = in->Get<uint32_t>(16);
  tensor.file = in->Word();
  tensor.name = in->Rest();
  if (tensor.name.empty()) return false;
  manifest->tensors.push_back(std::move(tensor));
  return in->ok();
}

// Takes one line; false if it is of no known kind.
bool TakeLine(std::string_view line, Manifest* manifest) {
  Fields in(line);
  const std::string_view key = in.Word();
  if (key == "file") return TakeFile(&in, manifest);
  if (key == "tensor") return TakeTensor(&in, manifest);

  CheckpointStep& step = manifest->step;
  constexpr std::array kNumbers{
      std::pair{"version", &CheckpointStep::version},
      std::pair{"optimizer_step", &CheckpointStep::optimizer_step},
      std::pair{"data_cursor", &CheckpointStep::data_cursor},
      std::pair{"random_state", &CheckpointStep::random_state},
  };
  for (const auto& [name, number] : kNumbers) {
    if (key != name) continue;
    step.*number = in.Get<uint64_t>();
    return in.ok();
  }

  if (key == "scaler_steps") {
    step.scaler_steps = in.Get<uint32_t>();
  } else if (key == "loss_scale") {
    step.loss_scale = std::bit_cast<float>(in.Get<uint32_t>(16));
  } else {
    return false;
  }
  return in.ok();
}

// Checks the last line, which begins at `at`.
Status CheckEnd(std::string_view text, size_t at, std::string_view line, size_t number,
                const Manifest& manifest) {
  const bool fits = line.substr(4) == Hex(CrcOf(text.substr(0, at))) ||
                    TP_PLANTED("checkpoint.manifest_unchecked");
  if (!fits) return Bad(number, "does not fit its check");
  if (at + line.size() + 1 != text.size()) return Bad(number + 1, "goes on behind its end");
  if (manifest.step.version == 0) return Bad(number, "names no step");
  return {};
}

}  // namespace

const char* SuffixOfPlane(uint32_t plane) {
  constexpr std::array<const char*, 5> kSuffixes{"", kFirstMoment, kSecondMoment, kFirstScales,
                                                 kSecondScales};
  return kSuffixes[plane];
}

std::string TextOf(const Manifest& manifest) {
  const CheckpointStep& step = manifest.step;
  std::string text = std::string(kFirstLine) + "\n";
  const auto number = [&text](const char* key, uint64_t value) {
    text += std::string(key) + " " + std::to_string(value) + "\n";
  };
  number("version", step.version);
  number("optimizer_step", step.optimizer_step);
  number("data_cursor", step.data_cursor);
  number("random_state", step.random_state);
  number("scaler_steps", step.scaler_steps);
  text += "loss_scale " + Hex(std::bit_cast<uint32_t>(step.loss_scale)) + "\n";

  for (const ManifestFile& file : manifest.files) {
    text += "file " + std::to_string(file.bytes) + " " + std::to_string(file.head) + " " +
            Hex(file.crc) + " " + file.name + "\n";
  }
  for (const ManifestTensor& tensor : manifest.tensors)
    text += "tensor " + Hex(tensor.crc) + " " + tensor.file + " " + tensor.name + "\n";
  return text + "end " + Hex(CrcOf(text)) + "\n";
}

Result<Manifest> ReadManifest(std::string_view text) {
  Manifest manifest;
  size_t at = 0, number = 0;
  while (at < text.size()) {
    ++number;
    const size_t end = text.find('\n', at);
    if (end == std::string_view::npos) return Bad(number, "is cut off");
    const std::string_view line = text.substr(at, end - at);
    if (number == 1 && line != kFirstLine)
      return Bad(number, "is of no checkpoint that is known here");

    if (line.starts_with("end ")) {
      TP_RETURN_IF_ERROR(CheckEnd(text, at, line, number, manifest));
      return manifest;
    }
    if (number > 1 && !TakeLine(line, &manifest))
      return Bad(number, "has a line that is not understood");
    at = end + 1;
  }
  return Bad(number, "is cut off");
}

}  // namespace tidepool
