#include "tests/fakes/adam_model.h"

#include <cmath>

namespace tidepool::memserver {

AdamModel::AdamModel(const shm::JobSpec& spec) : spec_(spec) {
  for (const shm::ChunkSpec& chunk : spec.chunks) {
    const std::vector<double> zeros(chunk.elements, 0.0);
    chunks_.push_back({zeros, zeros, zeros, zeros});
  }
}

double AdamModel::Norm(double loss_scale) const {
  double sum = 0;
  for (const shm::ParameterSpec& parameter : spec_.parameters) {
    const double* gradient = chunks_[parameter.chunk].gradients.data() + parameter.element_begin;
    for (uint64_t i = 0; i < parameter.element_count; ++i) sum += gradient[i] * gradient[i];
  }
  return std::sqrt(sum) / loss_scale;
}

double AdamModel::Step(double learning_rate, double loss_scale) {
  const double norm = Norm(loss_scale);
  if (!std::isfinite(norm)) return norm;
  double clip = 1;
  if (spec_.max_grad_norm > 0) clip = std::fmin(1.0, spec_.max_grad_norm / (norm + 1e-6));
  ++steps_;
  for (const shm::ParameterSpec& parameter : spec_.parameters) {
    const shm::ParameterGroup& group = spec_.parameter_groups[parameter.group];
    learning_rate_ = learning_rate * group.lr_scale;
    ChunkValues& values = chunks_[parameter.chunk];
    for (uint64_t i = parameter.element_begin; i < parameter.element_begin + parameter.element_count; ++i) {
      UpdateElement(&values, i, values.gradients[i] * clip / loss_scale, group);
    }
  }
  return norm;
}

// Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
void AdamModel::UpdateElement(ChunkValues* values, uint64_t i, double gradient, const shm::ParameterGroup& group) {
  double& weight = values->weights[i];
  if (spec_.optimizer == shm::Optimizer::kAdam) {
    gradient += group.weight_decay * weight;
  } else {
    weight *= 1 - learning_rate_ * group.weight_decay;
  }
  double& m = values->momentum[i];
  double& v = values->variance[i];
  m = spec_.beta1 * m + (1 - spec_.beta1) * gradient;
  v = spec_.beta2 * v + (1 - spec_.beta2) * gradient * gradient;
  const double t = static_cast<double>(steps_);
  const double m_hat = m / (1 - std::pow(spec_.beta1, t));
  const double v_hat = v / (1 - std::pow(spec_.beta2, t));
  weight -= learning_rate_ * m_hat / (std::sqrt(v_hat) + spec_.eps);
}

}  // namespace tidepool::memserver
