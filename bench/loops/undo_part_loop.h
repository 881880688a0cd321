// The loop of undo_parts.h, compiled once per instruction set (undo_parts_v3.cpp,
// undo_parts_v4.cpp), like the product's own.
#pragma once

#include "bench/loops/undo_parts.h"
#include "optim/kernels/update_loop.h"

namespace tidepool::bench {
namespace {

using PartLoop = optim::UpdateLoop<optim::Bf16Element,
                                   optim::ElementForm<optim::WholeMaster<optim::Bf16Element>>,
                                   optim::AdamRule<true>>;
using optim::StoreForKill;

__attribute__((always_inline)) inline void OpenWords(const optim::BlockUndo& undo, uint64_t first) {
  const uint64_t block = (undo.begin + first) / optim::kBlockElements;
  uint64_t* const area = undo.areas[block % 2];
  StoreForKill(area + optim::kAreaPiece, 0);
  area[optim::kAreaVersion] = undo.version;
  area[optim::kAreaBegin] = block * optim::kBlockElements;
  area[optim::kAreaCount] = optim::kBlockElements;
  StoreForKill(area + optim::kAreaPiece, undo.identity);
  StoreForKill(undo.progress,
               undo.first_word + first / optim::kBlockElements * optim::kNextBlockWord);
}

template <UndoPart part>
void RunPart(const optim::StepFactors& factors, const optim::UpdateSpan& planes) {
  const auto f = optim::FactorsOf<optim::AdamRule<true>>(factors);
  const float scale = factors.gradient_scale;
  const optim::UpdateSpan span = planes;

  for (uint64_t first = 0; first < span.count; first += optim::kBlockElements) {
    optim::Block b = PartLoop::At(span, first);
    b.streams = PartLoop::Streams(span);
    PartLoop::Prefetch(span, first + span.prefetch);
    if constexpr (part == UndoPart::kCopies) {
      PartLoop::Save(reinterpret_cast<char*>(span.undo.areas[first / optim::kBlockElements % 2] +
                                             optim::kAreaValues),
                     b);
      __atomic_signal_fence(__ATOMIC_SEQ_CST);  // or the compiler would drop the stores
    } else {
      OpenWords(span.undo, first);
    }

    optim::ElementForm<optim::WholeMaster<optim::Bf16Element>>::Update<optim::Bf16Element,
                                                                       optim::AdamRule<true>>(
        f, scale, b);
  }
  _mm_sfence();
}

void RunUndoPart(UndoPart part, const optim::StepFactors& factors, const optim::UpdateSpan& span) {
  part == UndoPart::kCopies ? RunPart<UndoPart::kCopies>(factors, span)
                            : RunPart<UndoPart::kWords>(factors, span);
}

}  // namespace
}  // namespace tidepool::bench
