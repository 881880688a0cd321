#include "memserver/residency/spans/span_log.h"

namespace tidepool::memserver {

const char* NameOf(SpanKind kind) {
  constexpr std::array<const char*, kSpanKinds> kNames{
      "put",  "fetch",   "gradient", "gpu_update", "gpu_store", "update", "sum",
      "scan", "convert", "stage",    "check",      "read",      "write"};
  return kNames[static_cast<size_t>(kind)];
}

// A reader that sees a word of this span also sees that the former number is gone, because words
// are stored with release and loaded with acquire.
void SpanLog::Add(const Span& span) {
  const uint64_t number = added_.load(std::memory_order_relaxed);
  Slot& slot = slots_[number % kSpans];
  slot.number.store(0, std::memory_order_relaxed);
  const auto store = [&slot](size_t i, uint64_t word) {
    slot.words[i].store(word, std::memory_order_release);
  };

  store(0, static_cast<uint64_t>(span.kind) | uint64_t{span.by} << 32);
  store(1, span.chunk | uint64_t{span.piece} << 32);
  store(2, static_cast<uint64_t>(span.begin_ns));
  store(3, static_cast<uint64_t>(span.end_ns));
  slot.number.store(number + 1, std::memory_order_release);
  added_.store(number + 1, std::memory_order_release);
}

bool SpanLog::Read(uint64_t number, Span* span) const {
  const Slot& slot = slots_[number % kSpans];
  if (slot.number.load(std::memory_order_acquire) != number + 1) return false;
  std::array<uint64_t, 4> words{};
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.number.load(std::memory_order_relaxed) != number + 1) return false;

  span->kind = static_cast<SpanKind>(words[0] & 0xff);
  span->by = static_cast<uint32_t>(words[0] >> 32);
  span->chunk = static_cast<ChunkId>(words[1] & 0xffffffff);
  span->piece = static_cast<uint32_t>(words[1] >> 32);
  span->begin_ns = static_cast<int64_t>(words[2]);
  span->end_ns = static_cast<int64_t>(words[3]);
  return true;
}

std::vector<Span> SpanLog::Since(int64_t since_ns) const {
  const uint64_t added = added_.load(std::memory_order_acquire);
  std::vector<Span> spans;
  Span span;
  for (uint64_t number = added; number > 0 && added - number < kSpans; --number) {
    if (!Read(number - 1, &span)) break;
    if (span.end_ns >= since_ns) spans.push_back(span);
  }
  return {spans.rbegin(), spans.rend()};
}

}  // namespace tidepool::memserver
