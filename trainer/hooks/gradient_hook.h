// GradientHooks: after LibTorch has accumulated a parameter's gradient, moves it over the parameter
// in the chunk's rCache block and frees LibTorch's own copy (Elixir v2, section 4.1: gradients
// overwrite parameters).
//
// One thread, the one that made the object; a gradient that arrives on another thread is left in
// place and ends the step as described at OperatorHook::CheckThreads. Chunks in separate-gradient
// mode keep LibTorch's copy until CollectSeparate.
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

// Who reports an accumulated gradient. LibTorch allows one such hook per tensor, and Python runs
// its users' hooks from that one.
enum class GradientTeller : uint8_t {
  kHooks,   // hooks of this object, one per parameter
  kCaller,  // the caller, through Arrived
};

// Takes a parameter's gradient, as accumulated by LibTorch, instead of the rCache.
using GradientSink = std::function<Status(ParameterId, const at::Tensor&)>;

class GradientHooks {
 public:
  // `parameters[i]` is ParameterId i. All must outlive the hooks.
  GradientHooks(ParameterCache* cache, OperatorHook* operators, std::vector<at::Tensor> parameters,
                GradientTeller teller = GradientTeller::kHooks);
  // Sends all later gradients to `sink`; FinishBackward then has nothing to collect.
  void SetSink(GradientSink sink) { sink_ = std::move(sink); }
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // LibTorch has accumulated the parameter's gradient. Failures are latched by the OperatorHook.
  void Arrived(ParameterId parameter);
  // Ends one micro-batch's backward: submits the gradients still in LibTorch's copies, zeros for
  // parameters without a gradient, and starts the reduce-scatter of every chunk not yet in flight.
  // Errors: as latched by the cache or an earlier hook, kUsageError (a gradient that was not
  // reported).
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
