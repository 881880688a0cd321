#include "trainer/model/generate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>

#include "base/random.h"

namespace tidepool::trainer {
namespace {

// Most choices fall on so few of the likeliest tokens. Where one does not, four times as many are
// ranked each time: a model that has learnt nothing chooses among all.
constexpr int64_t kRankedAtFirst = 64;

Status CheckRequest(const GptShape& shape, const std::vector<int64_t>& prompt,
                    const GenerateOptions& options) {
  if (prompt.empty())
    return Status(ErrorId::kUsageError, "the prompt is empty")
        .Fix("give at least one token to continue");

  const auto beyond = std::find_if(prompt.begin(), prompt.end(),
                                   [&](int64_t id) { return id < 0 || id >= shape.vocab; });
  if (beyond != prompt.end()) {
    return Status(ErrorId::kUsageError, "token id " + std::to_string(*beyond) +
                                            " of the prompt is beyond the vocabulary of " +
                                            std::to_string(shape.vocab) + " of '" + shape.name +
                                            "'");
  }

  if (!(options.temperature >= 0))
    return Status(ErrorId::kUsageError, "the temperature must be 0 or more");
  return {};
}

// A token with its logit in one number, so that a plain ascending sort ranks tokens: the likeliest
// first, equal ones by id.
uint64_t RankedToken(float logit, size_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0F);  // -0 becomes 0
  const uint32_t rising = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{~rising} << 32 | id;
}

int64_t TokenOf(uint64_t ranked) {
  return static_cast<int64_t>(ranked & UINT32_MAX);
}

// Samples from the softmax of the `top_k` largest logits with `uniform` in [0, 1); equal logits
// rank by token id. Tokens are ranked only as far as the choice reaches: sorting a whole vocabulary
// takes longer than the forward of a small model.
int64_t Pick(const std::vector<float>& logits, const GenerateOptions& options, double uniform) {
  std::vector<uint64_t> order(logits.size());
  for (size_t id = 0; id < order.size(); ++id) order[id] = RankedToken(logits[id], id);
  const uint64_t first = *std::min_element(order.begin(), order.end());

  const uint64_t kept = options.temperature == 0 ? 1
                        : options.top_k == 0     ? logits.size()
                                                 : std::min<uint64_t>(options.top_k, logits.size());
  if (kept == 1) return TokenOf(first);
  const auto end = order.begin() + static_cast<int64_t>(kept);
  if (kept < order.size()) std::nth_element(order.begin(), end, order.end());

  const double largest = logits[static_cast<size_t>(TokenOf(first))];
  const auto weight = [&](uint64_t token) {
    return std::exp((logits[static_cast<size_t>(TokenOf(token))] - largest) / options.temperature);
  };
  double left = uniform * std::accumulate(order.begin(), end, 0.0, [&](double sum, uint64_t token) {
                  return sum + weight(token);
                });

  auto ranked = order.begin();
  for (auto at = order.begin(); at + 1 < end; ++at) {
    if (at == ranked) {
      ranked += std::min(std::max(kRankedAtFirst, 3 * (ranked - order.begin())), end - ranked);
      if (ranked != end) std::nth_element(at, ranked, end);
      std::sort(at, ranked);
    }

    left -= weight(*at);
    if (left < 0) return TokenOf(*at);
  }
  return TokenOf(*(end - 1));
}

// The logits after `text`, of which the cache has all but the last token, or nothing.
std::vector<float> LogitsAfter(Gpt* model, std::vector<int64_t>* text, KvCache* cache) {
  const size_t context = model->shape().context;
  size_t fresh = cache->tokens == 0 ? std::min(text->size(), context) : 1;
  if (static_cast<size_t>(cache->tokens) == context) {
    // Positions shift, so the whole cache becomes invalid.
    *cache = KvCache();
    fresh = (context + 1) / 2;
  }

  const at::Tensor tokens = at::from_blob(text->data() + (text->size() - fresh),
                                          {1, static_cast<int64_t>(fresh)}, at::kLong);
  const at::Tensor logits = model->NextLogits(tokens, cache).to(at::kFloat).contiguous();
  return {logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel()};
}

}  // namespace

Result<std::vector<int64_t>> Generate(Gpt* model, const std::vector<int64_t>& prompt,
                                      const GenerateOptions& options, const TokenSink& sink) {
  TP_RETURN_IF_ERROR(CheckRequest(model->shape(), prompt, options));
  std::vector<int64_t> text = prompt;
  SplitMix64 random(options.seed);
  KvCache cache;

  try {
    for (uint64_t i = 0; i < options.tokens; ++i) {
      const std::vector<float> logits = LogitsAfter(model, &text, &cache);
      if (std::any_of(logits.begin(), logits.end(),
                      [](float logit) { return std::isnan(logit); })) {
        return Status(ErrorId::kNonFinite, "the model's output is not a number")
            .Why("its weights are damaged or training diverged");
      }

      text.push_back(Pick(logits, options, random.Unit()));
      if (sink && !sink(text.back())) break;
    }
  } catch (const std::exception& error) {
    const std::string why = error.what();
    return Status(ErrorId::kLibraryFailed, "generating text failed")
        .Why(why.substr(0, why.find('\n')));
  }
  return std::vector<int64_t>(text.begin() + static_cast<int64_t>(prompt.size()), text.end());
}

}  // namespace tidepool::trainer
