// OperatorHook: before every dispatched operator, forward and backward, brings the chunks of its
// parameter inputs into the rCache and holds them there until the operator ends (the pre-op and
// post-op hook of Elixir v1, section III; PatrickStar, section 6.1).
//
// One thread: the hook watches the operators of the thread that installed it. A thread may have
// several hooks, one for each engine; each sees the parameters of its own. Backward runs on that
// thread too: on the host always, on a GPU because the engine switches LibTorch's threads of
// backward off. An operator that runs elsewhere all the same, with this thread's state, is counted
// there and ends the step (CheckThreads); it touches nothing else.
// Invariants:
//  1. it never throws: LibTorch swallows exceptions of such callbacks and runs the operator on. A
//     failure is latched in status(), all chunks are pointed at readable zeros, and the caller
//     abandons the step at its next boundary. While the cache is trace-only they lie there too:
//     operators run on for the order's sake;
//  2. an operator whose parameters are all used by an enclosing operator adds nothing, and one
//     whose chunks are all held adds no moment to the recorded order;
//  3. an operator whose chunks are in the rCache allocates nothing, once an operator with as many
//     parameters was watched;
//  4. an operator that would read a gradient as a parameter fails (trainer/layout/tensor_state.h);
//  5. the parameters that a function of the user's own (an autograd::Function, from C++ or Python)
//     was given are there while its backward runs, which may have kept their addresses. LibTorch's
//     own nodes of backward read through operators;
//  6. an operator that would write to a parameter gets an exception where it asks for the memory,
//     and changes nothing; no failure is latched.
// In a process that is forked from this one, no operator is watched and every parameter throws.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/cache/parameter_cache.h"
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
  // `gate` is called before an operator that is within no other one brings its chunks, and its
  // error is latched; `node` before each node of backward, of whatever model.
  void SetGate(std::function<Status()> gate, std::function<void()> node) {
    gate_ = std::move(gate);
    node_ = std::move(node);
  }
  // Operators that hold chunks at this moment, and those of Hold.
  size_t holding() const { return holding_; }
  // Has the parameters in which these tensors lie there until LetGo, as an operator would that
  // reads them: for code that reads them by their addresses. Returns a number for LetGo; 0: there
  // is nothing to let go, as all parameters among them are held already, or a failure was latched.
  uint64_t Hold(const std::vector<at::Tensor>& tensors);
  // What was held last is let go first. False where something else was, and nothing is changed. A
  // number that is not held (any more) is none to let go.
  bool LetGo(uint64_t number);

  // The first failure since construction; the hook does nothing after it.
  const Status& status() const { return status_; }
  // For neighbours that find a failure outside an operator (the gradient hook): latches it in the
  // same way.
  void Latch(Status status);
  // Any thread: a part of the model, or of its backward, has run where it must not.
  void NoteElsewhere() { elsewhere_.store(true, std::memory_order_relaxed); }
  // Latches kInternal when one has since Install; called behind Remove.
  void CheckThreads();
  // Applies the cache's moves to the storages; called after every call into the cache.
  void ApplyMoves();

  uint64_t operators_seen() const { return operators_seen_; }

 private:
  friend struct OperatorCallbacks;  // the two plain functions that LibTorch calls

  struct Holding {         // what one operator has
    const void* function;  // LibTorch's note of it, which ends with it; null: of Hold
    std::vector<ParameterId> parameters{};
    std::vector<ChunkId> chunks{};
    uint64_t number = 0;  // one of Hold
  };
  struct Refusal {  // of one operator's write
    const void* function;
    ChunkId chunk;
  };
  void Start(const at::RecordFunction& function);
  void StartNode(const at::RecordFunction& function);
  // Requires that touched_ has the operator's parameters. Holds nothing when an enclosing operator
  // uses all of them, or after a failure.
  void Before(const void* function, const char* name);
  void After(const void* function);
  void EndLast();
  void PlaceAllSpare();

  ParameterCache* cache_;
  StorageBinding* binding_;
  std::vector<uint32_t> uses_;  // by ParameterId: operators in flight that use it
  // Reused, so that an operator whose chunks are there allocates nothing.
  std::vector<ParameterId> touched_;
  // What operators in flight have, the outer ones first; behind them empty ones.
  std::vector<Holding> holds_;
  size_t holding_ = 0;  // used entries of holds_
  uint64_t holds_begun_ = 0;
  std::vector<Refusal> refusals_;
  std::function<Status()> gate_;
  std::function<void()> node_;
  std::vector<Move> moves_;
  Status status_;
  bool all_spare_ = false;
  std::atomic<bool> elsewhere_ = false;
  // Operators that had run elsewhere, in the whole process, when the hook was installed.
  uint64_t strays_ = 0;
  bool installed_ = false;
  uint64_t operators_seen_ = 0;
};

}  // namespace tidepool::trainer
