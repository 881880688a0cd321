#include "optim/gradient_norm.h"

#include <algorithm>
#include <cmath>

namespace tidepool::optim {

double CombineNorm(std::span<const double> sum_squares) {
  double total = 0;
  for (double sum : sum_squares) total += sum;
  return std::sqrt(total);
}

float ClipFactor(double norm, float max_norm) {
  if (max_norm <= 0) return 1.0F;
  return static_cast<float>(std::min(1.0, static_cast<double>(max_norm) / (norm + 1e-6)));
}

}  // namespace tidepool::optim
