#include "trainer/hooks/operator_hook.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/record_function.h>

#include "base/check.h"
#include "trainer/hooks/operator_inputs.h"

namespace tidepool::trainer {
namespace {

// The hooks of this thread, and LibTorch's handles of the two callbacks that serve them all.
thread_local std::vector<OperatorHook*> installed;
thread_local at::CallbackHandle operators_watched = 0, nodes_watched = 0;
// Watched operators on threads without a hook. The callback cannot know whose they are.
std::atomic<uint64_t> stray_operators{0};

}  // namespace

struct OperatorCallbacks {
  static std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
    if (installed.empty()) stray_operators.fetch_add(1, std::memory_order_relaxed);
    for (OperatorHook* hook : installed) hook->Start(function);
    return nullptr;
  }

  static std::unique_ptr<at::ObserverContext> StartNode(const at::RecordFunction& node) {
    for (OperatorHook* hook : installed) hook->StartNode(node);
    return nullptr;
  }

  static void End(const at::RecordFunction& function, at::ObserverContext*) {
    for (OperatorHook* hook : installed) hook->After(&function);
  }

  // Runs in the forked child, on the thread that forked.
  static void Forked() {
    for (OperatorHook* hook : installed) hook->binding_->RefuseForked();
    installed.clear();
  }
};

OperatorHook::OperatorHook(ParameterCache* cache, StorageBinding* binding)
    : cache_(cache),
      binding_(binding),
      find_([binding](const at::Tensor& tensor) { return binding->ParameterOf(tensor); }),
      uses_(binding->parameters(), 0) {}

OperatorHook::~OperatorHook() {
  Remove();
}

void OperatorHook::Install() {
  TP_CHECK(!installed_, "a hook is installed once");
  installed_ = true;
  strays_ = stray_operators.load(std::memory_order_relaxed);
  installed.push_back(this);
  if (installed.size() > 1) return;

  operators_watched = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OperatorCallbacks::Start, &OperatorCallbacks::End)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  nodes_watched = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OperatorCallbacks::StartNode, &OperatorCallbacks::End)
          .scopes({at::RecordScope::BACKWARD_FUNCTION}));

  static const int told_of_forks = pthread_atfork(nullptr, nullptr, &OperatorCallbacks::Forked);
  TP_CHECK(told_of_forks == 0, "a process can hear of its forks");
}

void OperatorHook::Remove() {
  if (!std::exchange(installed_, false)) return;
  std::erase(installed, this);
  if (!installed.empty()) return;
  at::removeCallback(operators_watched);
  at::removeCallback(nodes_watched);
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

void OperatorHook::TellOfUses() {
  if (!listener_.uses) return;
  for (const ParameterId parameter : touched_)
    listener_.uses(parameter, binding_->ChunkOf(parameter));
}

void OperatorHook::Start(const at::RecordFunction& function) {
  if (listener_.begins) listener_.begins(function.name());
  if (!status_.ok()) return;
  ++operators_seen_;
  const uint32_t written = FindParametersUsed(*binding_, function, &touched_);
  if (written != StorageBinding::kNoParameter) {
    refusals_.push_back({&function, binding_->ChunkOf(written)});
    return binding_->RefuseWrite(refusals_.back().chunk);
  }
  TellOfUses();
  if (!touched_.empty()) Before(&function, function.name());
}

void OperatorHook::StartNode(const at::RecordFunction& function) {
  if (listener_.begins) listener_.begins(function.name());
  if (!status_.ok()) return;
  if (node_) node_();
  FindParametersOfNode(find_, &touched_);
  TellOfUses();
  if (!touched_.empty()) Before(&function, function.name());
}

void OperatorHook::Before(const void* function, const char* name) {
  if (std::all_of(touched_.begin(), touched_.end(),
                  [this](ParameterId parameter) { return uses_[parameter] > 0; }))
    return;

  if (gate_ && holding_ == 0) {
    Status opened = gate_();
    ApplyMoves();
    if (!opened.ok()) return Latch(std::move(opened));
  }

  if (holding_ == holds_.size()) holds_.emplace_back();
  Holding& hold = holds_[holding_];
  hold.function = function;
  hold.number = 0;
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
  if (listener_.ends) listener_.ends();
  if (!refusals_.empty() && refusals_.back().function == function) {
    binding_->AdmitWrite(refusals_.back().chunk);
    refusals_.pop_back();
  }
  // Nested operators end first.
  if (holding_ == 0 || holds_[holding_ - 1].function != function) return;
  EndLast();
}

void OperatorHook::EndLast() {
  const Holding& hold = holds_[--holding_];
  for (const ParameterId parameter : hold.parameters) --uses_[parameter];
  if (!status_.ok()) return;
  Status ended = cache_->EndUse(hold.parameters);
  if (ended.ok()) ended = cache_->Release(hold.chunks);
  ApplyMoves();
  if (!ended.ok()) Latch(std::move(ended));
}

uint64_t OperatorHook::Hold(const std::vector<at::Tensor>& tensors) {
  if (!status_.ok()) return 0;
  touched_.clear();
  for (const at::Tensor& tensor : tensors) {
    const uint32_t parameter = binding_->ParameterOf(tensor);
    if (parameter == StorageBinding::kNoParameter) continue;
    if (std::find(touched_.begin(), touched_.end(), parameter) == touched_.end())
      touched_.push_back(parameter);
  }

  const size_t before = holding_;
  if (!touched_.empty()) Before(nullptr, "that was announced");
  if (holding_ == before) return 0;
  return holds_[before].number = ++holds_begun_;
}

bool OperatorHook::LetGo(uint64_t number) {
  const auto end = holds_.begin() + static_cast<std::ptrdiff_t>(holding_);
  const auto found = std::find_if(holds_.begin(), end,
                                  [number](const Holding& hold) { return hold.number == number; });
  if (number == 0 || found == end) return true;
  if (found + 1 != end) return false;
  EndLast();
  return true;
}

void OperatorHook::ApplyMoves() {
  moves_.clear();
  cache_->TakeMoves(&moves_);
  if (!status_.ok()) return;
  if (cache_->trace_only()) return PlaceAllSpare();
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
