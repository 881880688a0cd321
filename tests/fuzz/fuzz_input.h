// FuzzInput: the bytes of one fuzz run, taken apart from the front, as numbers, choices and byte
// strings.
//
// One thread. When the bytes are used up every number is 0 and every string empty, so that a target
// ends by itself: loop while Left().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace tidepool::fuzz {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(data, size) {}

  size_t Left() const { return rest_.size(); }

  template <typename N>
  requires std::is_arithmetic_v<N> N Number() {
    N value{};
    const size_t count = std::min(sizeof value, rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  // The next byte, which stays; 0 at the end.
  uint8_t Peek() const { return rest_.empty() ? 0 : rest_.front(); }
  uint8_t Byte() { return Number<uint8_t>(); }
  // 0 .. count - 1.
  uint32_t Choice(uint32_t count) {
    return count <= 256 ? Byte() % count : Number<uint32_t>() % count;
  }
  bool OneIn(uint32_t count) { return Choice(count) == count - 1; }

  // At most `count` bytes, fewer where fewer are left.
  std::span<const std::byte> Bytes(size_t count) {
    const auto taken = std::as_bytes(rest_.first(std::min(count, rest_.size())));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::string Text(size_t length_max) {
    const auto bytes = Bytes(Choice(static_cast<uint32_t>(length_max) + 1));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> Rest() { return Bytes(rest_.size()); }
  // The last `count` bytes become another input; a target that has two needs can so feed one
  // without moving the other.
  FuzzInput SplitEnd(size_t count) {
    const auto end = rest_.last(std::min(count, rest_.size()));
    rest_ = rest_.first(rest_.size() - end.size());
    return {end.data(), end.size()};
  }

 private:
  std::span<const uint8_t> rest_;
};

// A number at which code breaks: near 0, near the top, a power of two, near `honest`, or any.
inline uint64_t OddNumber(FuzzInput* input, uint64_t honest) {
  const uint8_t how = input->Byte();
  const uint64_t small = how / 8;
  switch (how % 8) {
    case 0: return small;
    case 1: return ~uint64_t{0} - small;
    case 2: return (uint64_t{1} << input->Choice(64)) - small % 2;
    case 3: return honest + small + 1;
    case 4: return honest - small - 1;
    case 5: return honest ^ (uint64_t{1} << input->Choice(64));
    case 6: return (honest & ~uint64_t{0xffff}) | input->Number<uint16_t>();
    default: return input->Number<uint64_t>();
  }
}

// Overwrites a few of `bytes` with bytes of the input.
inline void Disturb(FuzzInput* input, uint32_t times, std::span<std::byte> bytes) {
  for (uint32_t i = 0; i < times && !bytes.empty(); ++i)
    bytes[input->Number<uint32_t>() % bytes.size()] = std::byte{input->Byte()};
}

}  // namespace tidepool::fuzz
