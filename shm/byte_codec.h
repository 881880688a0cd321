// ByteWriter and ByteReader: convert fixed-width little-endian numbers and short strings to and
// from a byte array (job specs, control frames).
//
// One thread per object. A reader never reads past its bytes: after the first short read every
// later number is 0 and ok() is false, so that a decoder may read a whole record and check once.
// Nothing is allocated for a length that the bytes do not hold.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tidepool::shm {

class ByteWriter {
 public:
  // Appends the bytes of a number.
  template <typename N>
  requires std::is_arithmetic_v<N>
  void Put(N value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  // Appends a 32-bit length, then the characters.
  void PutString(std::string_view text) {
    Put<uint32_t>(static_cast<uint32_t>(text.size()));
    PutBytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  void PutBytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  // Moves the written bytes out.
  std::vector<std::byte> Take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  // The next number; 0 after a short read.
  template <typename N>
  requires std::is_arithmetic_v<N> N Get() {
    N value{};
    if (!Has(sizeof value)) return value;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_ = rest_.subspan(sizeof value);
    return value;
  }
  // A string of at most `length_max` characters; a longer one is a failure.
  std::string GetString(size_t length_max) {
    const auto length = Get<uint32_t>();
    if (length > length_max || !Has(length)) {
      ok_ = false;
      return {};
    }
    std::string text(reinterpret_cast<const char*>(rest_.data()), length);
    rest_ = rest_.subspan(length);
    return text;
  }

  // Fills all of `bytes`; leaves them unchanged after a short read.
  void GetBytes(std::span<std::byte> bytes) {
    if (!Has(bytes.size())) return;
    std::memcpy(bytes.data(), rest_.data(), bytes.size());
    rest_ = rest_.subspan(bytes.size());
  }

  bool ok() const { return ok_; }
  // True if every byte was read and no read was short.
  bool Finished() const { return ok_ && rest_.empty(); }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  bool Has(size_t count) {
    if (ok_ && rest_.size() >= count) return true;
    ok_ = false;
    return false;
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

static_assert(std::endian::native == std::endian::little,
              "the codec copies numbers as they lie in memory");

}  // namespace tidepool::shm
