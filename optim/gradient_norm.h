// The global gradient norm: the result of scanning one parameter, and how the sums of all
// parameters become one clip factor.
//
// Any thread; pure functions. The order of every addition is fixed by the parameter alone, so the
// norm does not depend on chunk size, workers or instruction set.
#pragma once

#include <cstdint>
#include <span>

namespace tidepool::optim {

// A parameter is summed in blocks of this many elements from its own start, each in kScanLanes
// lanes: element i of a block goes to lane i mod 16, lanes are combined by a tree (distance 8, 4,
// 2, 1), and block sums are added in order.
inline constexpr uint64_t kScanBlockElements = 1024;
inline constexpr uint64_t kScanLanes = 16;

// The result of scanning one parameter's gradients.
struct ScanResult {
  double sum_squares;  // of raw (still loss-scaled) gradients, in fp64; +inf where not finite
  bool finite;         // no element is inf or NaN
};

// sqrt of the sum of `sum_squares` (one per parameter, in parameter order); inf or NaN passes
// through. To unscale, multiply by 1 / scale.
double CombineNorm(std::span<const double> sum_squares);
// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 for max_norm <= 0 (no
// clipping). `norm` is the unscaled one.
float ClipFactor(double norm, float max_norm);

}  // namespace tidepool::optim
