// OperatorHook: before every dispatched operator, forward and backward, brings the chunks of its
// parameter inputs into the rCache and pins them there until the operator ends (the pre-op and
// post-op hook of Elixir v1, section III; PatrickStar, section 6.1).
//
// One thread: the hook watches the operators of the thread that installed it. A thread may have
// several hooks, one per engine; each sees the parameters of its own. Backward runs on that thread
// too: always on the host, and on a GPU because the engine disables LibTorch's backward threads. An
// operator that still runs on another thread, with this thread's state, is counted there and ends
// the step (CheckThreads); the hook does nothing else for it.
// Invariants:
//  1. it never throws: LibTorch swallows exceptions of such callbacks and continues the operator. A
//     failure is latched in status(), all chunks are pointed at readable zeros, and the caller
//     abandons the step at its next boundary. While the cache is trace-only the chunks are there
//     too: operators run only to record the order;
//  2. an operator whose parameters are all used by an enclosing operator adds nothing, and one
//     whose chunks are all pinned adds no moment to the recorded order;
//  3. an operator whose chunks are in the rCache allocates nothing, once an operator with as many
//     parameters has been watched;
//  4. an operator that would read a gradient as a parameter fails (trainer/layout/tensor_state.h);
//  5. the parameters passed to a user's own function (an autograd::Function, from C++ or Python)
//     are present while its backward runs, which may have kept their addresses. LibTorch's own
//     backward nodes read through operators;
//  6. an operator that would write to a parameter gets an exception when it requests the memory,
//     and changes nothing; no failure is latched.
// In a forked child no operator is watched and every parameter throws.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/hooks/operator_inputs.h"
#include "trainer/hooks/storage_binding.h"

namespace at {
struct RecordFunction;
class Tensor;
}  // namespace at

namespace tidepool::trainer {

class OperatorHook {
 public:
  // Both must outlive the hook.
  OperatorHook(ParameterCache* cache, StorageBinding* binding);
  ~OperatorHook();
  OperatorHook(const OperatorHook&) = delete;
  OperatorHook& operator=(const OperatorHook&) = delete;

  // While installed, operators are watched. Install and Remove on the same thread.
  void Install();
  void Remove();
  // `gate` is called before an outermost operator brings its chunks, and its error is latched;
  // `node` before each backward node of any model.
  void SetGate(std::function<Status()> gate, std::function<void()> node) {
    gate_ = std::move(gate);
    node_ = std::move(node);
  }
  // Callbacks for each operator and backward node: its begin, its end, and each parameter it uses.
  // They must not throw.
  struct Listener {
    std::function<void(const char* name)> begins;
    std::function<void()> ends;
    std::function<void(ParameterId parameter, ChunkId chunk)> uses;
  };
  // Replaces the listener. Its callbacks run on the thread of the operator.
  void SetListener(Listener listener) { listener_ = std::move(listener); }
  // Number of operators, and calls of Hold, that pin chunks now.
  size_t holding() const { return holding_; }
  // Pins the parameters that contain these tensors until LetGo, like an operator that reads them:
  // for code that accesses them by address. Returns a number for LetGo; 0: nothing to release,
  // because all parameters among them are pinned already, or a failure was latched.
  uint64_t Hold(const std::vector<at::Tensor>& tensors);
  // Releases a Hold; the latest must be released first. False if another one is later; nothing
  // changes. Ignores a number that is not (or no longer) held.
  bool LetGo(uint64_t number);

  // The first failure since construction; the hook does nothing after it.
  const Status& status() const { return status_; }
  // Latches a failure found outside an operator (by the gradient hook), in the same way.
  void Latch(Status status);
  // Any thread: part of the model, or of its backward, has run on a wrong thread.
  void NoteElsewhere() { elsewhere_.store(true, std::memory_order_relaxed); }
  // Latches kInternal if that has happened since Install; call it after Remove.
  void CheckThreads();
  // Applies the cache's moves to the storages; called after every call into the cache.
  void ApplyMoves();

  uint64_t operators_seen() const { return operators_seen_; }

 private:
  friend struct OperatorCallbacks;  // the two plain functions that LibTorch calls

  struct Holding {         // the pins of one operator
    const void* function;  // LibTorch's record of it, valid until it ends; null: of Hold
    std::vector<ParameterId> parameters{};
    std::vector<ChunkId> chunks{};
    uint64_t number = 0;  // that of Hold
  };
  struct Refusal {  // of one operator's write
    const void* function;
    ChunkId chunk;
  };
  void Start(const at::RecordFunction& function);
  // Reports the parameters in touched_ to the listener.
  void TellOfUses();
  void StartNode(const at::RecordFunction& function);
  // Requires the operator's parameters in touched_. Pins nothing if an enclosing operator uses all
  // of them, or after a failure.
  void Before(const void* function, const char* name);
  void After(const void* function);
  void EndLast();
  void PlaceAllSpare();

  ParameterCache* cache_;
  StorageBinding* binding_;
  const FindParameter find_;    // in the binding
  std::vector<uint32_t> uses_;  // by ParameterId: operators in flight that use it
  // Reused, so that an operator whose chunks are present allocates nothing.
  std::vector<ParameterId> touched_;
  // Pins of operators in flight, outermost first; unused entries follow.
  std::vector<Holding> holds_;
  size_t holding_ = 0;  // used entries of holds_
  uint64_t holds_begun_ = 0;
  std::vector<Refusal> refusals_;
  std::function<Status()> gate_;
  std::function<void()> node_;
  Listener listener_;
  std::vector<Move> moves_;
  Status status_;
  bool all_spare_ = false;
  std::atomic<bool> elsewhere_ = false;
  // The process's count of stray operators when the hook was installed.
  uint64_t strays_ = 0;
  bool installed_ = false;
  uint64_t operators_seen_ = 0;
};

}  // namespace tidepool::trainer
