#include "trainer/model/moe/moe_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/text/number_list.h"
#include "trainer/model/moe_text.h"

namespace tidepool::trainer {
namespace {

constexpr std::string_view kLayers = "layers", kEvery = "every";

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

// The lines of one file, from the first on.
class Lines {
 public:
  Lines(const std::string& file, const GptShape& shape)
      : file_(file), shape_(shape), defaults_(shape.moe), line_of_block_(shape.layers, 0) {
    defaults_.every = 1;
    defaults_.experts = 0;
    if (defaults_.width == 0) defaults_.width = shape.llama.mlp;
    blocks_.resize(shape.layers);
  }

  Status Take(std::string_view line) {
    ++number_;
    line = Trimmed(line.substr(0, line.find('#')));
    return line.empty() ? Status() : TakeKeys(line);
  }

  Result<std::vector<MoeSizes>> End() const {
    const auto has = [](const MoeSizes& moe) { return moe.on(); };
    if (std::any_of(blocks_.begin(), blocks_.end(), has)) return blocks_;
    return Bad("", "no line gives a block experts, such as layers=0-1, experts=8");
  }

 private:
  Status Bad(const std::string& what) const {
    return Bad(", line " + std::to_string(number_), what);
  }
  Status Bad(const std::string& place, const std::string& what) const {
    return Status(ErrorId::kConfigBadValue, file_ + place + ": " + what)
        .Where("--moe " + file_)
        .Fix("docs/plans.md (\"Blocks with other experts each\") has the form of the file");
  }

  Status TakeKeys(std::string_view line) {
    MoeSizes moe = defaults_;
    std::optional<std::string_view> layers;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t end = std::min(line.find(',', begin), line.size());
      const std::string_view part = Trimmed(line.substr(begin, end - begin));
      begin = end + 1;

      const size_t equals = part.find('=');
      if (equals == std::string_view::npos)
        return Bad("\"" + std::string(part) + "\" is no key with a value");
      const std::string_view name = Trimmed(part.substr(0, equals)),
                             value = Trimmed(part.substr(equals + 1));
      if (name == kEvery) return Bad("lines name blocks: every has no meaning here");
      if (name == kLayers) {
        layers = value;
        continue;
      }

      const std::string wrong = TakeMoeKey(name, value, &moe);
      if (!wrong.empty()) return Bad(wrong);
    }

    if (layers) return Give(*layers, moe);
    defaults_ = moe;
    return {};
  }

  // Gives the blocks "0-3", or "2", these experts.
  Status Give(std::string_view layers, const MoeSizes& moe) {
    Result<std::vector<uint32_t>> blocks = ParseNumberList(layers);
    if (!blocks.ok())
      return Bad("layers=" + std::string(layers) + ": a block or a range is meant, such as 0-3");
    if (blocks->back() >= shape_.layers) {
      return Bad("layers=" + std::string(layers) + ": the model '" + shape_.name +
                 "' has blocks 0 to " + std::to_string(shape_.layers - 1));
    }
    if (!moe.on()) return Bad("it does not say how many experts there are");

    for (const uint32_t layer : *blocks) {
      if (line_of_block_[layer] != 0) {
        return Bad("block " + std::to_string(layer) + " stands in line " +
                   std::to_string(line_of_block_[layer]) + " too");
      }
      line_of_block_[layer] = number_;
      blocks_[layer] = moe;
    }
    return {};
  }

  const std::string& file_;
  const GptShape& shape_;
  MoeSizes defaults_;
  std::vector<uint32_t> line_of_block_;  // 0: no line yet
  std::vector<MoeSizes> blocks_;
  uint32_t number_ = 0;
};

}  // namespace

bool IsMoeFile(const std::string& moe) {
  if (moe.empty()) return false;
  return moe.front() == '/' || moe.front() == '.' || moe.find('=') == std::string::npos;
}

Result<std::vector<MoeSizes>> ReadMoeFile(const std::string& file, const GptShape& shape) {
  std::ifstream in(file);
  std::stringstream text;
  // Inserting the buffer of an empty file fails, so do not try.
  if (in.is_open() && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || text.fail()) {
    return Status(ErrorId::kConfigUnreadable, "cannot read " + file + ": " + std::strerror(errno))
        .Where("--moe " + file)
        .Fix(
            "give keys, such as every=2,experts=8,top-k=2, or a file with a line for each block "
            "(docs/plans.md)");
  }

  Lines lines(file, shape);
  for (std::string line; std::getline(text, line);) TP_RETURN_IF_ERROR(lines.Take(line));
  return lines.End();
}

}  // namespace tidepool::trainer
