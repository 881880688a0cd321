#include "trainer/hooks/operator_hook.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/record_function.h>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

thread_local OperatorHook* installed = nullptr;

struct HeldChunks : at::ObserverContext {
  std::vector<ChunkId> chunks;
};

// Operators that only make another view of a tensor: they read no element, so they need no chunk.
bool IsView(std::string_view name) {
  static constexpr std::array<std::string_view, 14> kViews{
      "aten::t",       "aten::transpose", "aten::as_strided",     "aten::expand",      "aten::view",
      "aten::detach",  "aten::alias",     "aten::select",         "aten::slice",       "aten::permute",
      "aten::squeeze", "aten::unsqueeze", "aten::_reshape_alias", "aten::resolve_conj"};
  return std::find(kViews.begin(), kViews.end(), name) != kViews.end();
}

void AddChunk(const StorageBinding& binding, const at::Tensor& tensor, std::vector<ChunkId>* chunks) {
  const uint32_t chunk = binding.ChunkOf(tensor);
  if (chunk == StorageBinding::kNoChunk) return;
  if (std::find(chunks->begin(), chunks->end(), chunk) == chunks->end()) chunks->push_back(chunk);
}

// Chunks of an operator's tensor inputs, in order of appearance; lists and optional tensors are looked into.
void CollectChunks(const StorageBinding& binding, const c10::IValue& value, std::vector<ChunkId>* chunks) {
  if (value.isTensor()) {
    AddChunk(binding, value.toTensor(), chunks);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) AddChunk(binding, tensor, chunks);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) CollectChunks(binding, item, chunks);
  }
}

}  // namespace

struct OperatorCallbacks {
  static std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
    OperatorHook* hook = installed;
    if (hook == nullptr || !hook->status_.ok()) return nullptr;
    ++hook->operators_seen_;
    std::vector<ChunkId> touched;
    for (const c10::IValue& value : function.inputs()) CollectChunks(*hook->binding_, value, &touched);
    if (touched.empty() || IsView(function.name())) return nullptr;
    std::unique_ptr<std::vector<ChunkId>> held = hook->Before(std::move(touched));
    if (!held) return nullptr;
    auto context = std::make_unique<HeldChunks>();
    context->chunks = std::move(*held);
    return context;
  }

  static void End(const at::RecordFunction&, at::ObserverContext* context) {
    if (installed != nullptr && context != nullptr) installed->After(static_cast<HeldChunks*>(context)->chunks);
  }
};

OperatorHook::OperatorHook(ParameterCache* cache, StorageBinding* binding, uint32_t chunk_count)
    : cache_(cache), binding_(binding), holds_(chunk_count, 0) {}

OperatorHook::~OperatorHook() {
  Remove();
}

void OperatorHook::Install() {
  TP_CHECK(installed == nullptr, "one operator hook per thread");
  installed = this;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OperatorCallbacks::Start, &OperatorCallbacks::End).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void OperatorHook::Remove() {
  if (installed != this) return;
  at::removeCallback(callback_);
  installed = nullptr;
}

std::unique_ptr<std::vector<ChunkId>> OperatorHook::Before(std::vector<ChunkId> touched) {
  const auto is_held = [this](ChunkId chunk) { return holds_[chunk] > 0; };
  if (std::all_of(touched.begin(), touched.end(), is_held)) return nullptr;
  Status acquired = cache_->Acquire(touched);
  ApplyMoves();
  if (!acquired.ok()) {
    Latch(std::move(acquired));
    return nullptr;
  }
  for (const ChunkId chunk : touched) ++holds_[chunk];
  return std::make_unique<std::vector<ChunkId>>(std::move(touched));
}

void OperatorHook::After(const std::vector<ChunkId>& held) {
  for (const ChunkId chunk : held) --holds_[chunk];
  if (!status_.ok()) return;
  Status released = cache_->Release(held);
  ApplyMoves();
  if (!released.ok()) Latch(std::move(released));
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
  for (ChunkId chunk = 0; chunk < holds_.size(); ++chunk) binding_->PlaceSpare(chunk);
}

}  // namespace tidepool::trainer
