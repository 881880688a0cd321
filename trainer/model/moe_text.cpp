#include "trainer/model/moe_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "base/text/number_list.h"
#include "base/text/suggest.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

constexpr uint32_t kExpertsMax = 4096, kWidthMax = 1 << 24;

struct WholeKey {
  std::string_view name;
  uint32_t MoeSizes::*value;
  uint32_t most;
};
constexpr std::array<WholeKey, 5> kWholeKeys{{{"every", &MoeSizes::every, 1 << 16},
                                              {"experts", &MoeSizes::experts, kExpertsMax},
                                              {"top-k", &MoeSizes::top_k, kExpertsMax},
                                              {"width", &MoeSizes::width, kWidthMax},
                                              {"ep", &MoeSizes::ep, 1 << 16}}};

struct RealKey {
  std::string_view name;
  float MoeSizes::*value;
  bool zero;  // 0 is allowed
};
constexpr std::array<RealKey, 3> kRealKeys{{{"capacity", &MoeSizes::capacity, false},
                                            {"aux", &MoeSizes::aux, true},
                                            {"z", &MoeSizes::z, true}}};

constexpr std::string_view kResidual = "residual";

std::vector<std::string_view> KeyNames() {
  std::vector<std::string_view> names;
  for (const WholeKey& key : kWholeKeys) names.push_back(key.name);
  for (const RealKey& key : kRealKeys) names.push_back(key.name);
  names.push_back(kResidual);
  return names;
}

Status Bad(const std::string& text, const std::string& what) {
  return Status(ErrorId::kUsageError, what)
      .Where("--moe " + text)
      .Fix(
          "give keys with commas between, such as every=2,experts=8,top-k=2; also width=N, "
          "capacity=1.25 (left out: no token is dropped), aux=0.01, z=0.001, residual=yes, and "
          "ep=4: "
          "ranks that share a block's experts; or a file with a line for each block that differs");
}

template <typename Number>
bool Read(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string Text(float value) {
  std::array<char, 32> number{};
  const auto [end, error] = std::to_chars(number.data(), number.data() + number.size(), value,
                                          std::chars_format::general);
  return std::string(number.data(), end);
}

// "8 experts in one of 2 blocks, 2 a token, dropless".
std::string TextOf(const MoeSizes& moe, const std::string& where) {
  std::string text = std::to_string(moe.experts) + " experts" + where + ", " +
                     std::to_string(moe.top_k) + " a token, ";
  if (moe.residual) text += "beside the MLP, ";
  if (moe.ep > 1) text += "shared by " + std::to_string(moe.ep) + " ranks, ";
  if (moe.capacity == 0) return text + "dropless";
  return text + "with room for " + Text(moe.capacity) + " times the mean";
}

// One block's experts; `where` names it, or is empty if all have the same.
Status CheckBlock(const MoeSizes& moe, const GptShape& shape, const std::string& where) {
  const auto bad = [&](const std::string& what, const std::string& remedy) {
    return Status(ErrorId::kUsageError, "the model '" + shape.name + "' " + what + where)
        .Where("--moe")
        .Fix(remedy);
  };

  if (moe.experts < moe.top_k || moe.top_k == 0) {
    return bad("is to send each token to " + std::to_string(moe.top_k) + " of " +
                   std::to_string(moe.experts) + " experts",
               "give a top-k from 1 to the number of experts");
  }
  if (moe.ep == 0 || moe.experts % moe.ep != 0) {
    return bad("has " + std::to_string(moe.experts) + " experts in a block, which " +
                   std::to_string(moe.ep) + " ranks cannot share",
               "give an ep that divides the number of experts");
  }

  if (moe.width == 0) return bad("has experts of no width", "give width=N");
  if (!(moe.capacity >= 0) || !(moe.aux >= 0) || !(moe.z >= 0))
    return bad("has a capacity, aux or z below 0", "give numbers of 0 or more");
  return {};
}

}  // namespace

std::string TakeMoeKey(std::string_view name, std::string_view value, MoeSizes* moe) {
  for (const WholeKey& key : kWholeKeys) {
    if (key.name != name) continue;

    uint32_t number = 0;
    if (Read(value, &number) && number >= 1 && number <= key.most) {
      moe->*key.value = number;
      return {};
    }
    return std::string(name) + "=" + std::string(value) + ": a whole number from 1 to " +
           std::to_string(key.most) + " is meant";
  }

  for (const RealKey& key : kRealKeys) {
    if (key.name != name) continue;

    float number = 0;
    if (Read(value, &number) && std::isfinite(number) && (key.zero ? number >= 0 : number > 0)) {
      moe->*key.value = number;
      return {};
    }
    return std::string(name) + "=" + std::string(value) + ": a number " +
           (key.zero ? "of 0 or more" : "above 0") + " is meant";
  }

  if (name == kResidual) {
    moe->residual = value == "yes";
    return moe->residual || value == "no"
               ? std::string()
               : "residual=" + std::string(value) + ": yes or no is meant";
  }

  const std::vector<std::string_view> names = KeyNames();
  return "there is no key \"" + std::string(name) + "\"" + DidYouMean(std::string(name), names);
}

Result<MoeSizes> ReadMoe(const std::string& text, const MoeSizes& moe) {
  MoeSizes read = moe;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;

    const size_t equals = part.find('=');
    if (equals == std::string_view::npos)
      return Bad(text, "\"" + std::string(part) + "\" is no key with a value");
    const std::string wrong = TakeMoeKey(part.substr(0, equals), part.substr(equals + 1), &read);
    if (!wrong.empty()) return Bad(text, wrong);
  }

  if (read.experts == 0) return Bad(text, "it does not say how many experts there are");
  if (read.every == 0) read.every = 1;
  return read;
}

std::string MoeWords(const MoeSizes& moe) {
  if (!moe.on()) return {};
  std::string words = "experts=" + std::to_string(moe.experts) +
                      ",top-k=" + std::to_string(moe.top_k) + ",width=" + std::to_string(moe.width);
  if (moe.capacity > 0) words += ",capacity=" + Text(moe.capacity);
  return words + ",aux=" + Text(moe.aux) + ",z=" + Text(moe.z) +
         (moe.residual ? ",residual=yes" : "");
}

Status CheckMoe(const GptShape& shape) {
  const MoeSizes& moe = shape.moe;
  if (!moe.on() && shape.moe_layers.empty()) return {};
  const auto bad = [&shape](const std::string& what, const std::string& remedy) {
    return Status(ErrorId::kUsageError, "the model '" + shape.name + "' " + what)
        .Where("--moe")
        .Fix(remedy);
  };

  if (shape.form != ModelForm::kLlama)
    return bad("has blocks of GPT-2's form, which have no experts here",
               "give a preset of Llama's form, such as --preset llama-small");
  if (shape.moe_layers.empty()) {
    TP_RETURN_IF_ERROR(CheckBlock(moe, shape, ""));
    if (moe.every != 0 && moe.every <= shape.layers) return {};
    return bad("has " + std::to_string(shape.layers) + " blocks, and experts in each " +
                   std::to_string(moe.every) + "th",
               "give every=1 to every=" + std::to_string(shape.layers));
  }

  if (shape.moe_layers.size() != shape.layers) {
    return bad("has " + std::to_string(shape.layers) + " blocks, and experts are given for " +
                   std::to_string(shape.moe_layers.size()),
               "give those of each block");
  }
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.moe_layers[layer].on()) continue;
    TP_RETURN_IF_ERROR(
        CheckBlock(shape.moe_layers[layer], shape, ", in block " + std::to_string(layer)));
  }
  return {};
}

std::string NumbersText(const std::string& what, const std::vector<uint32_t>& numbers) {
  return what + (numbers.size() == 1 ? " " : "s ") + FormatNumberList(numbers);
}

std::string MoeText(const GptShape& shape) {
  const MoeSizes& moe = shape.moe;
  if (shape.moe_layers.empty()) {
    return TextOf(moe, moe.every == 1 ? std::string(" in each block")
                                      : " in one of " + std::to_string(moe.every) + " blocks");
  }

  // Blocks with the same experts are named together.
  std::string text;
  std::vector<bool> named(shape.layers, false);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (named[layer] || !shape.moe_layers[layer].on()) continue;

    std::vector<uint32_t> alike;
    for (uint32_t other = layer; other < shape.layers; ++other) {
      if (shape.moe_layers[other] != shape.moe_layers[layer]) continue;
      alike.push_back(other);
      named[other] = true;
    }

    text += (text.empty() ? "" : "; ") + NumbersText("block", alike) + ": " +
            TextOf(shape.moe_layers[layer], "");
  }
  return text;
}

}  // namespace tidepool::trainer
