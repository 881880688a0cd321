#include "tests/fakes/small_trainer.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "shm/step_numbers.h"
#include "tests/fakes/values.h"

namespace tidepool::memserver {
SmallTrainer::SmallTrainer(ServeWorld* world, shm::JobSpec spec)
    : world_(world), spec_(std::move(spec)), model_(spec_) {
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    places_.emplace_back(spec_.chunks[chunk].elements);
    for (uint64_t i = 0; i < places_.back().size(); ++i)
      places_.back()[i] = {spec_.parameters.size() + chunk, i};
  }
  for (ParameterId id = 0; id < spec_.parameters.size(); ++id) {
    const shm::ParameterSpec& parameter = spec_.parameters[id];
    for (uint64_t i = 0; i < parameter.element_count; ++i)
      places_[parameter.chunk][parameter.element_begin + i] = {id, i};
  }
}

float SmallTrainer::GradientAt(const StepPlan& plan, uint32_t micro_batch, ChunkId chunk,
                               uint64_t element) const {
  if (plan.zeros.contains({micro_batch, chunk})) return 0;
  const Place& place = places_[chunk][element];
  return plan.loss_scale *
         ValueAt(plan.seed + version_ * 31 + micro_batch * 7, place.parameter, place.element);
}

bool SmallTrainer::JoinAll(uint32_t uid) {
  ranks_.clear();
  for (Rank rank = 0; rank < spec_.world; ++rank) {
    ranks_.push_back(world_->Join(spec_, rank, uid));
    if (ranks_.back() == nullptr) return false;
    const auto attached = world_->TakeReply<Attached>();
    if (!attached) return false;
    version_ = attached->sealed_version;
  }
  return true;
}

void SmallTrainer::PutWeights(uint64_t seed) {
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    for (uint64_t i = 0; i < spec_.chunks[chunk].elements; ++i)
      model_.weights(chunk)[i] =
          ValueAt(seed, places_[chunk][i].parameter, places_[chunk][i].element);
    const uint64_t count = spec_.ShardElements(chunk);
    for (const auto& rank : ranks_) {
      if (!spec_.IsMember(chunk, rank->rank())) continue;
      const uint64_t begin = spec_.ShardIndex(chunk, rank->rank()) * count;
      for (uint64_t i = 0; i < count; ++i)
        rank->At<float>(0)[i] = static_cast<float>(model_.weights(chunk)[begin + i]);
      const uint64_t part = count / 2;
      TP_CHECK(world_->Await(rank.get(), rank->Put(chunk, begin, part, 0)).error == 0,
               "weights are taken");
      TP_CHECK(
          world_->Await(rank.get(), rank->Put(chunk, begin + part, count - part, part * 4)).error ==
              0,
          "weights are taken");
    }
  }
}

std::vector<float> SmallTrainer::ShardGradient(const StepPlan& plan, ChunkId chunk, Rank rank,
                                               uint32_t micro_batch) const {
  const uint64_t count = spec_.ShardElements(chunk);
  const uint64_t begin = spec_.ShardIndex(chunk, rank) * count;
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = GradientAt(plan, micro_batch, chunk, begin + i);
  const bool last = micro_batch + 1 == spec_.micro_batches;
  if (plan.poisoned && last && chunk == 0 && begin == 0)
    values[3] = std::numeric_limits<float>::infinity();
  return values;
}

void SmallTrainer::Submit(const StepPlan& plan, Rank first) {
  world_->AwaitWeights(spec_.name);
  for (uint32_t micro_batch = 0; micro_batch < spec_.micro_batches; ++micro_batch) {
    for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
      for (Rank turn = 0; turn < spec_.world; ++turn) {
        FakeRank& rank = *ranks_[(first + turn) % spec_.world];
        if (!spec_.IsMember(chunk, rank.rank())) continue;
        const uint64_t count = spec_.ShardElements(chunk);
        Encode(spec_.GradientTypeOf(chunk), ShardGradient(plan, chunk, rank.rank(), micro_batch),
               rank.rcache());
        const uint64_t begin = spec_.ShardIndex(chunk, rank.rank()) * count;
        shm::Request request =
            FakeRank::SubmitRequest({chunk, begin, count, 0, version_, micro_batch});
        const bool without = plan.zeros.contains({micro_batch, chunk}) && !plan.zeros_as_bytes;
        if (without) request.flags = shm::kZeros;
        const shm::Completion answer = world_->Await(&rank, rank.Send(request));
        TP_CHECK(answer.error == 0 && (answer.bytes == 0) == without, "gradients are taken");
      }
    }
  }
}

shm::Completion SmallTrainer::EndStep(const StepPlan& plan) {
  std::vector<uint64_t> set(shm::WordsOfSet(spec_.parameters.size()));
  for (const ParameterId id : plan.untouched) set[id / 64] |= uint64_t{1} << id % 64;
  std::vector<shm::Request> says = shm::UntouchedRequestsOf(set, spec_.parameters.size(), version_);
  for (const auto& [group, numbers] : plan.groups)
    says.push_back(shm::GroupNumbersRequestOf(group, numbers, version_));

  std::vector<uint64_t> counters;
  for (const auto& rank : ranks_) {
    for (const shm::Request& request : says) rank->Send(request);
    counters.push_back(rank->EndStep(version_, plan.learning_rate, plan.loss_scale));
  }
  shm::Completion first{};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    for (uint64_t before = says.size(); before > 0; --before)
      (void)world_->Await(ranks_[i].get(), counters[i] - before);
    const shm::Completion answer = world_->Await(ranks_[i].get(), counters[i]);
    if (i == 0) first = answer;
    TP_CHECK(answer.version == first.version && answer.error == first.error,
             "all ranks get the same answer");
  }
  return first;
}

void SmallTrainer::SetModelGradients(const StepPlan& plan) {
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    for (uint64_t i = 0; i < spec_.chunks[chunk].elements; ++i) {
      double sum = 0;
      for (uint32_t k = 0; k < spec_.micro_batches; ++k) sum += GradientAt(plan, k, chunk, i);
      model_.gradients(chunk)[i] = sum;
    }
  }
  if (plan.poisoned) model_.gradients(0)[3] = std::numeric_limits<double>::infinity();
}

shm::Completion SmallTrainer::Step(const StepPlan& plan) {
  Submit(plan);
  SetModelGradients(plan);
  const shm::Completion end = EndStep(plan);
  model_.Step(plan.learning_rate, plan.loss_scale);
  if (end.error == 0) version_ = end.version;
  return end;
}

std::vector<std::vector<float>> SmallTrainer::FetchAll() {
  std::vector<std::vector<float>> chunks;
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    chunks.emplace_back();
    const uint64_t count = spec_.ShardElements(chunk);
    for (const auto& rank : ranks_) {
      if (!spec_.IsMember(chunk, rank->rank())) continue;
      const uint64_t begin = spec_.ShardIndex(chunk, rank->rank()) * count;
      const shm::Completion answer =
          world_->Await(rank.get(), rank->Fetch(chunk, begin, count, 0, version_));
      TP_CHECK(answer.error == 0 && answer.version == version_, "parameters are delivered");
      const std::vector<float> shard = Decode(spec_.DTypeOf(chunk), rank->rcache(), count);
      chunks.back().insert(chunks.back().end(), shard.begin(), shard.end());
    }
  }
  return chunks;
}

std::vector<std::vector<float>> SmallTrainer::FetchParameters() {
  const std::vector<std::vector<float>> chunks = FetchAll();
  std::vector<std::vector<float>> parameters;
  for (const shm::ParameterSpec& parameter : spec_.parameters) {
    const auto begin =
        chunks[parameter.chunk].begin() + static_cast<ptrdiff_t>(parameter.element_begin);
    parameters.emplace_back(begin, begin + static_cast<ptrdiff_t>(parameter.element_count));
  }
  return parameters;
}

std::string SmallTrainer::Compare(double tolerance) {
  const std::vector<std::vector<float>> chunks = FetchAll();
  for (ChunkId chunk = 0; chunk < chunks.size(); ++chunk) {
    for (uint64_t i = 0; i < chunks[chunk].size(); ++i) {
      const double expected = model_.weights(chunk)[i];
      const double found = chunks[chunk][i];
      if (std::abs(found - expected) <= tolerance * std::fmax(1, std::abs(expected))) continue;
      return "chunk " + std::to_string(chunk) + " element " + std::to_string(i) + ": " +
             std::to_string(found) + ", expected " + std::to_string(expected);
    }
  }
  return "";
}

void SmallTrainer::LeaveAll() {
  for (const auto& rank : ranks_) world_->Leave(*rank);
  world_->Settle();
}

}  // namespace tidepool::memserver
