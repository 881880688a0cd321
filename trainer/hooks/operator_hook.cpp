#include "trainer/hooks/operator_hook.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/record_function.h>

#include "base/check.h"
#include "trainer/hooks/operator_inputs.h"

namespace tidepool::trainer {
namespace {

thread_local OperatorHook* installed = nullptr;
// Watched operators on threads that have no hook. The callback cannot know whose they are.
std::atomic<uint64_t> stray_operators{0};

}  // namespace

struct OperatorCallbacks {
  static std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
    OperatorHook* hook = installed;
    if (hook == nullptr) stray_operators.fetch_add(1, std::memory_order_relaxed);
    if (hook == nullptr || !hook->status_.ok()) return nullptr;
    ++hook->operators_seen_;
    FindParametersRead(*hook->binding_, function, &hook->touched_);
    if (!hook->touched_.empty()) hook->Before(&function, function.name());
    return nullptr;
  }

  static void End(const at::RecordFunction& function, at::ObserverContext*) {
    if (installed != nullptr) installed->After(&function);
  }
};

OperatorHook::OperatorHook(ParameterCache* cache, StorageBinding* binding)
    : cache_(cache), binding_(binding), uses_(binding->parameters(), 0) {}

OperatorHook::~OperatorHook() {
  Remove();
}

void OperatorHook::Install() {
  TP_CHECK(installed == nullptr, "one operator hook per thread");
  installed = this;
  strays_ = stray_operators.load(std::memory_order_relaxed);
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OperatorCallbacks::Start, &OperatorCallbacks::End)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

void OperatorHook::Remove() {
  if (installed != this) return;
  at::removeCallback(callback_);
  installed = nullptr;
}

void OperatorHook::CheckThreads() {
  if (stray_operators.load(std::memory_order_relaxed) == strays_ &&
      !elsewhere_.load(std::memory_order_relaxed))
    return;
  Latch(
      Status(ErrorId::kInternal,
             "operators of the model, or of its backward, ran on another thread than the trainer's")
          .Why("chunks are brought for the operators of one thread; LibTorch's own threads of "
               "backward are switched off for it")
          .Fix("do not start threads, and do not switch multithreaded backward on, inside the "
               "model"));
}

void OperatorHook::Before(const void* function, const char* name) {
  if (std::all_of(touched_.begin(), touched_.end(),
                  [this](ParameterId parameter) { return uses_[parameter] > 0; }))
    return;

  if (holding_ == holds_.size()) holds_.emplace_back();
  Hold& hold = holds_[holding_];
  hold.function = function;
  hold.parameters.swap(touched_);
  hold.chunks.clear();
  for (const ParameterId parameter : hold.parameters) {
    const ChunkId chunk = binding_->ChunkOf(parameter);
    if (std::find(hold.chunks.begin(), hold.chunks.end(), chunk) == hold.chunks.end())
      hold.chunks.push_back(chunk);
  }

  Status begun = cache_->Acquire(hold.chunks);
  if (begun.ok()) begun = cache_->BeginUse(hold.parameters);
  ApplyMoves();
  if (!begun.ok()) {
    const bool illegal = begun.id() == ErrorId::kTensorStateIllegal;
    return Latch(illegal ? std::move(begun).Where(std::string("operator ") + name)
                         : std::move(begun));
  }
  for (const ParameterId parameter : hold.parameters) ++uses_[parameter];
  ++holding_;
}

void OperatorHook::After(const void* function) {
  // An operator within another one ends before it.
  if (holding_ == 0 || holds_[holding_ - 1].function != function) return;
  const Hold& hold = holds_[--holding_];
  for (const ParameterId parameter : hold.parameters) --uses_[parameter];
  if (!status_.ok()) return;
  Status ended = cache_->EndUse(hold.parameters);
  if (ended.ok()) ended = cache_->Release(hold.chunks);
  ApplyMoves();
  if (!ended.ok()) Latch(std::move(ended));
}

void OperatorHook::ApplyMoves() {
  moves_.clear();
  cache_->TakeMoves(&moves_);
  if (!status_.ok()) return;
  if (cache_->dry()) return PlaceAllSpare();
  for (const Move& move : moves_) binding_->Place(move.chunk, move.block);
}

void OperatorHook::Latch(Status status) {
  if (!status_.ok() || status.ok()) return;
  status_ = std::move(status);
  PlaceAllSpare();
}

void OperatorHook::PlaceAllSpare() {
  if (std::exchange(all_spare_, true)) return;
  for (ChunkId chunk = 0; chunk < binding_->chunks(); ++chunk) binding_->PlaceSpare(chunk);
}

}  // namespace tidepool::trainer
