#include "trainer/run/expert_mover.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/errors/model_error.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kLookNs = 50'000;
constexpr uint32_t kPlaces = 1U << 30;

DType TypeOf(const at::Tensor& rows) {
  return rows.scalar_type() == at::kFloat  ? DType::kF32
         : rows.scalar_type() == at::kHalf ? DType::kF16
                                           : DType::kBF16;
}

// The operations of one group.
class Mover {
 public:
  explicit Mover(MoverParts parts) : parts_(std::move(parts)) {}

  std::vector<int64_t> Counts(const std::vector<int64_t>& counts) {
    std::vector<int64_t> got(counts.size());
    // One count is moved as two fp32 elements: the bytes do not change.
    const uint64_t each = 2 * counts.size() / parts_.group->world();
    PartsView view{.out = counts.data(), .in = got.data()};
    view.out_elements.assign(parts_.group->world(), each);
    view.in_elements = view.out_elements;
    Exchange("counts of tokens", std::move(view));
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
    Exchange("tokens", std::move(view));
    return got;
  }

 private:
  void Exchange(const char* what, PartsView view) {
    place_ = place_ % kPlaces + 1;
    view.name = {.place = place_, .of = what};
    const Collective::Ticket ticket = parts_.group->StartAllToAll(view);
    while (!parts_.group->Test(ticket)) {
      const Status status = parts_.meanwhile();
      if (!status.ok()) {
        parts_.group->GiveUp(status);
        break;
      }
      parts_.clock->SleepNs(kLookNs);
    }

    const Status ended = parts_.group->Wait(ticket);
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

}  // namespace tidepool::trainer
