#include "trainer/profile/meta_device.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

using at::Tensor;

Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim)] = index.numel();
  return at::empty(sizes, self.options());
}

Tensor EmbeddingBackward(const Tensor& gradient, const Tensor&, int64_t count, int64_t, bool) {
  return at::empty({count, gradient.size(-1)}, gradient.options());
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

// Returns mean and reciprocal deviation in fp32, like all devices.
Three Norm(const Tensor& x, at::IntArrayRef shape, const std::optional<Tensor>&,
           const std::optional<Tensor>&, double) {
  std::vector<int64_t> sizes = x.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(shape.size()), sizes.end(), 1);
  const at::TensorOptions statistics = x.options().dtype(at::kFloat);
  return {at::empty_like(x, at::MemoryFormat::Contiguous), at::empty(sizes, statistics),
          at::empty(sizes, statistics)};
}

constexpr auto kNormBackward = [](const Tensor&, const Tensor& x, at::IntArrayRef, const Tensor&,
                                  const Tensor&, const std::optional<Tensor>& weight,
                                  const std::optional<Tensor>& bias,
                                  std::array<bool, 3> wanted) -> Three {
  return {wanted[0] ? at::empty_like(x, at::MemoryFormat::Contiguous) : Tensor(),
          wanted[1] ? at::empty_like(*weight) : Tensor(),
          wanted[2] ? at::empty_like(*bias) : Tensor()};
};

// [B][heads][T][size], laid out as [B][T][heads][size].
Tensor ByToken(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

constexpr auto kAttention = [](const Tensor& query, const Tensor&, const Tensor&, double, bool,
                               const std::optional<Tensor>&,
                               std::optional<double>) -> std::tuple<Tensor, Tensor> {
  const at::TensorOptions sums = query.options().dtype(at::kFloat);
  return {ByToken(query),
          at::empty({query.size(0), query.size(2), query.size(1)}, sums).transpose(1, 2)};
};

constexpr auto kAttentionBackward =
    [](const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&,
       const Tensor&, double, bool, const std::optional<Tensor>&, std::optional<double>) -> Three {
  return {ByToken(query), ByToken(key), ByToken(value)};
};

// LibTorch has no fused attention for the meta device and would use the one that keeps all scores.
constexpr auto kFusedAttention = [](const Tensor& query, const Tensor& key, const Tensor& value,
                                    const std::optional<Tensor>& mask, double dropout, bool causal,
                                    std::optional<double> scale, bool) -> Tensor {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                     causal, mask, scale));
};

bool alive = false;

}  // namespace

struct MetaDevice::State {
  State() {
    kernels.impl("index_select", &IndexSelect);
    kernels.impl("embedding_dense_backward", &EmbeddingBackward);
    kernels.impl("native_layer_norm", &Norm);
    kernels.impl("native_layer_norm_backward", kNormBackward);
    kernels.impl("_scaled_dot_product_flash_attention_for_cpu", kAttention);
    kernels.impl("_scaled_dot_product_flash_attention_for_cpu_backward", kAttentionBackward);
    with_gradient.impl("scaled_dot_product_attention", kFusedAttention);
  }

  torch::Library kernels{torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__};
  torch::Library with_gradient{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta,
                               __FILE__, __LINE__};
};

MetaDevice::MetaDevice() {
  TP_CHECK(!std::exchange(alive, true), "one MetaDevice at a time");
  state_ = std::make_unique<State>();
}

MetaDevice::~MetaDevice() {
  state_.reset();
  alive = false;
}

}  // namespace tidepool::trainer
