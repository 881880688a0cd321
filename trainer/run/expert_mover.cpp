#include "trainer/run/expert_mover.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "trainer/model/errors/model_error.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kLookNs = 50'000;
constexpr uint32_t kPlaces = 1U << 30;

DType TypeOf(const at::Tensor& rows) {
  return rows.scalar_type() == at::kFloat  ? DType::kF32
         : rows.scalar_type() == at::kHalf ? DType::kF16
                                           : DType::kBF16;
}

// The operations of both groups.
class Mover {
 public:
  explicit Mover(MoverParts parts) : parts_(std::move(parts)) {}

  std::vector<int64_t> Counts(const std::vector<int64_t>& counts) {
    const uint32_t world = parts_.all->world();
    std::vector<int64_t> given, got(world * counts.size());
    for (uint32_t rank = 0; rank < world; ++rank)
      given.insert(given.end(), counts.begin(), counts.end());

    // One count is moved as two fp32 elements: the bytes do not change.
    PartsView view{.out = given.data(), .in = got.data()};
    view.out_elements.assign(world, 2 * counts.size());
    view.in_elements = view.out_elements;
    Exchange(parts_.all, "counts of tokens", std::move(view));
    return got;
  }

  at::Tensor Rows(const at::Tensor& rows, const std::vector<int64_t>& out,
                  const std::vector<int64_t>& in) {
    const auto width = static_cast<uint64_t>(rows.size(1));
    PartsView view{.dtype = TypeOf(rows)};
    int64_t count = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      view.out_elements.push_back(static_cast<uint64_t>(out[i]) * width);
      view.in_elements.push_back(static_cast<uint64_t>(in[i]) * width);
      count += in[i];
    }

    at::Tensor got = at::empty({count, rows.size(1)}, rows.options());
    view.out = rows.const_data_ptr();
    view.in = got.mutable_data_ptr();
    Exchange(GroupOf(out.size()), "tokens", std::move(view));
    return got;
  }

 private:
  Collective* GroupOf(size_t ranks) const {
    for (Collective* const group : parts_.sharing) {
      if (group->world() == ranks) return group;
    }
    TP_CHECK(false, "the session made a group for each number of ranks that share experts");
    return nullptr;
  }

  void Exchange(Collective* group, const char* what, PartsView view) {
    place_ = place_ % kPlaces + 1;
    view.name = {.place = place_, .of = what};
    const Collective::Ticket ticket = group->StartAllToAll(view);
    while (!group->Test(ticket)) {
      const Status status = parts_.meanwhile();
      if (!status.ok()) {
        group->GiveUp(status);
        break;
      }
      parts_.clock->SleepNs(kLookNs);
    }

    const Status ended = group->Wait(ticket);
    if (!ended.ok()) throw ModelError(ended);
  }

  const MoverParts parts_;
  uint32_t place_ = 0;
};

}  // namespace

TokenMover MoverOf(MoverParts parts) {
  const auto mover = std::make_shared<Mover>(std::move(parts));
  return {.counts = [mover](const std::vector<int64_t>& counts) { return mover->Counts(counts); },
          .rows = [mover](const at::Tensor& rows, const std::vector<int64_t>& out,
                          const std::vector<int64_t>& in) { return mover->Rows(rows, out, in); }};
}

TokenExchange ExchangeOfExperts(const ExpertParts& parts) {
  if (!HasExperts(parts.plan->shape)) return NoExchange();
  const std::unique_ptr<TrainingEngine>* const engine = parts.engine;
  std::optional<uint32_t> rank;
  if (!parts.plan->expert_groups.empty()) rank = parts.plan->rank;

  TokenMover mover;
  if (Collective* const all = parts.session->routing()) {
    mover = MoverOf({.all = all,
                     .sharing = parts.session->experts(),
                     .clock = parts.clock,
                     .meanwhile = [engine] { return (*engine)->open_cache()->Progress(); }});
  }

  ExpertUses uses;
  uses.tell = [engine](const std::vector<uint32_t>& units, const Used& used) {
    return (*engine)->RouteUnits(
        {.units = units, .used = &used.here, .used_anywhere = &used.anywhere});
  };
  uses.pass_by = [engine](uint32_t unit) { (*engine)->PassUnitBy(unit); };
  return {rank, std::move(mover), std::move(uses)};
}

}  // namespace tidepool::trainer
