#include "trainer/profile/meta_bytes.h"

#include <algorithm>
#include <utility>

#include <c10/core/Allocator.h>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

bool counts = false;

}  // namespace

struct MetaBytes::State {
  // Outlives every tensor that it has counted.
  struct Bytes {
    uint64_t live = 0, peak = 0;
  };

  struct Given {
    std::shared_ptr<Bytes> bytes;
    uint64_t size;
  };

  class Allocator final : public c10::Allocator {
   public:
    c10::DataPtr allocate(size_t size) override {
      bytes->live += size;
      bytes->peak = std::max(bytes->peak, bytes->live);
      return {nullptr, std::make_unique<Given>(Given{bytes, size}).release(), &Take,
              c10::Device(c10::kMeta)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void*, const void*, size_t) const override {}

    const std::shared_ptr<Bytes> bytes = std::make_shared<Bytes>();

   private:
    static void Take(void* given) {
      const std::unique_ptr<Given> back(static_cast<Given*>(given));
      back->bytes->live -= back->size;
    }
  };

  State() : before(c10::GetAllocator(c10::kMeta)) {
    c10::SetAllocator(c10::kMeta, &allocator, kPriority);
  }
  ~State() { c10::SetAllocator(c10::kMeta, before, kPriority); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  static constexpr uint8_t kPriority = 1;  // above LibTorch's own

  c10::Allocator* const before;
  Allocator allocator;
};

MetaBytes::MetaBytes() {
  TP_CHECK(!std::exchange(counts, true), "one MetaBytes at a time");
  state_ = std::make_unique<State>();
}

MetaBytes::~MetaBytes() {
  state_.reset();
  counts = false;
}

uint64_t MetaBytes::live() const {
  return state_->allocator.bytes->live;
}

uint64_t MetaBytes::peak() const {
  return state_->allocator.bytes->peak;
}

void MetaBytes::ForgetPeak() {
  state_->allocator.bytes->peak = state_->allocator.bytes->live;
}

}  // namespace tidepool::trainer
