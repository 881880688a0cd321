#include "base/formats/moment_words.h"

#include <cstring>

namespace tidepool {

void KeepMoment(StateForm form, std::span<const uint32_t> words, uint64_t first, std::byte* plane) {
  if (form == StateForm::kSplitBf16) {
    auto* const to = reinterpret_cast<uint16_t*>(plane) + first;
    for (size_t i = 0; i < words.size(); ++i) to[i] = static_cast<uint16_t>(words[i] >> 16);
  } else if (form == StateForm::kSplit8) {
    auto* const to = reinterpret_cast<uint8_t*>(plane) + first;
    for (size_t i = 0; i < words.size(); ++i) to[i] = static_cast<uint8_t>(words[i]);
  } else {
    std::memcpy(plane + first * sizeof(uint32_t), words.data(), words.size_bytes());
  }
}

void KeepScales(std::span<const uint32_t> words, uint64_t first, std::byte* scales) {
  auto* const to = reinterpret_cast<uint32_t*>(scales);
  const uint64_t skipped =
      (kScaleBlockElements - first % kScaleBlockElements) % kScaleBlockElements;
  for (uint64_t i = skipped; i < words.size(); i += kScaleBlockElements)
    to[(first + i) / kScaleBlockElements] = words[i];
}

}  // namespace tidepool
