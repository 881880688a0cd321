#include "device/host/operation_runner.h"

#include <algorithm>
#include <cstring>

#include "base/hot.h"
#include "base/planted.h"
#include "device/host/copy_bytes.h"

namespace tidepool::device {
namespace {

// Cyclic: values may wrap; poison ends every wait.
bool Reached(const Flag* flag, uint64_t value) {
  const uint64_t now = flag->load(std::memory_order_acquire);
  if (now == kFlagPoison && !TP_PLANTED("device.poison_is_a_value")) return true;
  return TP_PLANTED("device.flags_compared_plainly") ? now >= value
                                                     : static_cast<int64_t>(now - value) >= 0;
}

}  // namespace

TP_HOT OperationRunner::Progress OperationRunner::Run(uint64_t bytes_max) {
  Progress progress;
  uint64_t spent = 0;
  while (spent < bytes_max) {
    const Operation* operation = queue_->Front();
    if (operation == nullptr) {
      progress.state = State::kIdle;
      return progress;
    }

    const uint64_t cost = Execute(*operation, bytes_max - spent, &progress);
    if (cost == 0) {
      progress.state = State::kBlocked;
      return progress;
    }
    spent += cost;
    progress.worked = true;
  }

  progress.state = State::kWorked;
  return progress;
}

TP_HOT uint64_t OperationRunner::Execute(const Operation& operation, uint64_t bytes_max,
                                         Progress* progress) {
  switch (operation.kind) {
    case Operation::Kind::kCopy: return CopyPiece(operation, bytes_max);
    case Operation::Kind::kZero: return ZeroPiece(operation, bytes_max);
    case Operation::Kind::kKernel: return KernelPiece(operation, bytes_max);

    case Operation::Kind::kWaitFlag:
      if (!Reached(operation.wait, operation.value)) return 0;
      break;
    case Operation::Kind::kWaitMarker:
      if (operation.other->load(std::memory_order_acquire) < operation.value) return 0;
      break;

    case Operation::Kind::kWriteFlag:
      operation.write->store(operation.value, std::memory_order_release);
      break;
    case Operation::Kind::kMarker:
      passed_->store(operation.value, std::memory_order_release);
      progress->marker_passed = true;
      break;
  }

  queue_->Pop();
  return kOperationCost;
}

uint64_t OperationRunner::ZeroPiece(const Operation& operation, uint64_t bytes_max) {
  const uint64_t piece = std::min(operation.value - moved_, bytes_max);
  if (piece > 0) std::memset(operation.dst + moved_, 0, piece);  // memset does not accept null
  Moved(operation, piece);
  return std::max(piece, kOperationCost);
}

uint64_t OperationRunner::KernelPiece(const Operation& operation, uint64_t bytes_max) {
  const KernelCall& call = *operation.call;
  const Kernel& kernel = *call.kernel;
  const uint64_t unit = uint64_t{kernel.item_bytes} * kernel.items_a_thread;
  const uint64_t most = std::max<uint64_t>(bytes_max / unit, 1) * kernel.items_a_thread;
  const uint64_t piece = std::min(operation.value - moved_, most);
  if (piece > 0) kernel.host(call.arguments.data(), moved_, piece);
  const uint64_t cost = std::max(piece * kernel.item_bytes, kOperationCost);
  Moved(operation, piece);
  return cost;
}

TP_HOT uint64_t OperationRunner::CopyPiece(const Operation& operation, uint64_t bytes_max) {
  const uint64_t piece = std::min(operation.value - moved_, bytes_max);
  std::byte* const dst = operation.dst + moved_;
  const std::byte* const src = operation.src + moved_;
  const bool together = team_ != nullptr && operation.value >= kStreamingCopyMin;
  together ? team_->Copy(dst, src, piece, operation.value)
           : CopyBytes(dst, src, piece, operation.value);
  Moved(operation, piece);
  return std::max(piece, kOperationCost);
}

TP_HOT void OperationRunner::Moved(const Operation& operation, uint64_t count) {
  moved_ += count;
  if (moved_ == operation.value || TP_PLANTED("device.piece_taken_for_whole")) {
    moved_ = 0;
    queue_->Pop();
  }
}

}  // namespace tidepool::device
