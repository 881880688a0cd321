#include "trainer/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/random.h"

namespace tidepool::trainer {
namespace {

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

// Samples from the softmax of the `top_k` largest logits with `uniform` in [0, 1); equal logits
// rank by token id.
int64_t Pick(const std::vector<float>& logits, const GenerateOptions& options, double uniform) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);

  const uint64_t kept = options.temperature == 0 ? 1
                        : options.top_k == 0     ? logits.size()
                                                 : std::min<uint64_t>(options.top_k, logits.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(),
                    [&](int64_t a, int64_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  if (kept == 1) return order[0];

  const double largest = logits[static_cast<size_t>(order[0])];
  std::vector<double> sums(kept);
  double sum = 0;
  for (uint64_t i = 0; i < kept; ++i) {
    sum += std::exp((logits[static_cast<size_t>(order[i])] - largest) / options.temperature);
    sums[i] = sum;
  }
  const auto chosen = std::upper_bound(sums.begin(), sums.end() - 1, uniform * sum);
  return order[static_cast<size_t>(chosen - sums.begin())];
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
