#include "tests/fakes/small_job.h"

#include <cstring>

namespace tidepool::memserver {

shm::JobSpec SmallJob(const SmallJobShape& shape) {
  const uint64_t elements = shape.chunk_elements * shape.world;
  return MakeSpec({.name = shape.name,
                   .world = shape.world,
                   .dtype = shape.dtype,
                   .chunks = shape.chunks,
                   .chunk_elements = elements,
                   .micro_batches = shape.micro_batches,
                   .max_grad_norm = 2,
                   .loss_scaling = shape.loss_scaling,
                   .rcache_bytes = RoundUp(elements * sizeof(float), 64 * kKiB),
                   .f32_chunks = shape.f32_chunks});
}

bool Same(const Weights& a, const Weights& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

bool TrainSteps(SmallTrainer* trainer, uint64_t from, uint64_t to) {
  bool done = true;
  for (uint64_t step = from; step < to; ++step) {
    const bool poisoned = trainer->spec().loss_scaling == 1 && step % 3 == 1;
    const auto answer =
        trainer->Step({.learning_rate = 0.05F, .seed = step + 1, .poisoned = poisoned});
    done = done && answer.error == 0;
  }
  return done;
}

}  // namespace tidepool::memserver
