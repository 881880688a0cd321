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
    for (uint64_t i = parameter.element_begin;
         i < parameter.element_begin + parameter.element_count; ++i) {
      UpdateElement(&values, i, values.gradients[i] * clip / loss_scale, group);
    }
  }
  return norm;
}

void AdamModel::UpdateElement(ChunkValues* values, uint64_t i, double gradient,
                              const shm::ParameterGroup& group) {
  const OptimizerSpec& o = spec_.optimizer;
  const double t = static_cast<double>(steps_);
  double& weight = values->weights[i];
  double& m = values->momentum[i];
  double& v = values->variance[i];
  const bool decoupled = o.rule == OptimizerRule::kAdamW || o.rule == OptimizerRule::kLion;
  if (decoupled) weight *= 1 - learning_rate_ * group.weight_decay;
  if (!decoupled) gradient += group.weight_decay * weight;
  switch (o.rule) {
    case OptimizerRule::kAdamW:
    // Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
    case OptimizerRule::kAdam:
      m = o.beta1 * m + (1 - o.beta1) * gradient;
      v = o.beta2 * v + (1 - o.beta2) * gradient * gradient;
      weight -= learning_rate_ * m / (1 - std::pow(o.beta1, t)) /
                (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.eps);
      break;
    case OptimizerRule::kSgd:
      m = steps_ == 1 ? gradient : o.momentum * m + (1 - o.dampening) * gradient;
      weight -= learning_rate_ * (o.nesterov != 0 ? gradient + o.momentum * m : m);
      break;
    case OptimizerRule::kAdagrad:
      v += gradient * gradient;
      weight -= learning_rate_ / (1 + (t - 1) * o.lr_decay) * gradient / (std::sqrt(v) + o.eps);
      break;
    case OptimizerRule::kLion: {
      const double c = o.beta1 * m + (1 - o.beta1) * gradient;
      weight -= learning_rate_ * (c > 0 ? 1 : c < 0 ? -1 : 0);
      m = o.beta2 * m + (1 - o.beta2) * gradient;
      break;
    }
  }
}

}  // namespace tidepool::memserver
