// What is told of a frame without decoding it, and of a name in one.
#include <algorithm>

#include "shm/byte_codec.h"
#include "shm/frames.h"

namespace tidepool::shm {

FrameType TypeOf(std::span<const std::byte> head) {
  ByteReader in(head);
  const auto magic = in.Get<uint32_t>();
  const auto type = in.Get<uint16_t>();
  if (!in.ok() || magic != kFrameMagic) return FrameType::kOther;
  for (const FrameType known : {FrameType::kHello, FrameType::kSave, FrameType::kResume}) {
    if (type == static_cast<uint16_t>(known)) return known;
  }
  return FrameType::kOther;
}

bool IsPlainFileName(const std::string& name) {
  const auto plain = [](char c) {
    return c != '/' && static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
  };
  return !name.empty() && name.size() <= kFileNameMax && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), plain);
}

}  // namespace tidepool::shm
