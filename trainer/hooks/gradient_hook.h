// GradientHooks: when LibTorch has accumulated a parameter's gradient, moves it over the parameter
// in the chunk's rCache block and gives LibTorch's own copy up (Elixir v2, section 4.1: gradients
// overwrite parameters).
//
// One thread, the one that made the object; a gradient that comes on another one is left where it
// is, and ends the step as OperatorHook::CheckThreads says. Chunks in separate-gradient mode keep
// LibTorch's copy until CollectSeparate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/hooks/operator_hook.h"

namespace at {
class Tensor;
}

namespace tidepool::trainer {

// Who tells that a gradient has been accumulated. LibTorch has one such hook a tensor, and Python
// keeps its users' hooks behind that one.
enum class GradientTeller : uint8_t {
  kHooks,   // hooks of the object's own, one a parameter
  kCaller,  // the caller, by Arrived
};

// Takes a parameter's gradient, as LibTorch has accumulated it, in place of the rCache.
using GradientSink = std::function<Status(ParameterId, const at::Tensor&)>;

class GradientHooks {
 public:
  // `parameters[i]` is ParameterId i. All must outlive the hooks.
  GradientHooks(ParameterCache* cache, OperatorHook* operators, std::vector<at::Tensor> parameters,
                GradientTeller teller = GradientTeller::kHooks);
  // From here on gradients go to `sink`, and FinishBackward has nothing to collect.
  void SetSink(GradientSink sink) { sink_ = std::move(sink); }
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // LibTorch has accumulated the parameter's gradient. A failure is latched by the OperatorHook.
  void Arrived(ParameterId parameter);
  // End of one micro-batch's backward: hands in what is still in LibTorch's copies, zero for
  // parameters without a gradient, and starts the reduce-scatter of every chunk that is not yet on
  // its way. Errors: what the cache or an earlier hook latched, kUsageError (of a gradient nobody
  // has told).
  Status FinishBackward(uint32_t micro_batch);
  // Drops gradients that LibTorch holds (after an abandoned step).
  void DropAll();

 private:
  struct Hook;
  Status CollectSeparate();
  Status CheckAllArrived() const;

  ParameterCache* cache_;
  OperatorHook* operators_;
  const std::thread::id owner_;
  const GradientTeller teller_;
  GradientSink sink_;  // null: the rCache
  std::vector<at::Tensor> parameters_;
};

}  // namespace tidepool::trainer
