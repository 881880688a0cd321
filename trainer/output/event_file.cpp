#include "trainer/output/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace tidepool::trainer {
namespace {

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    // Castagnoli, reflected.
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

// CRC32C, rotated and offset as the TFRecord format requires.
uint32_t MaskedCrc(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <typename T>
void AppendRaw(std::string* out, T value) {
  std::array<char, sizeof(T)> bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
  out->append(bytes.data(), bytes.size());
}

void AppendVarint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// Protocol-buffer fields: key = number << 3 | wire type (0 varint, 1 eight bytes, 2
// length-delimited, 5 four bytes).
void AppendBytes(std::string* out, uint32_t field, std::string_view bytes) {
  AppendVarint(out, field << 3 | 2);
  AppendVarint(out, bytes.size());
  out->append(bytes);
}

std::string EventPrefix(uint64_t step) {
  std::string event;
  event.push_back(1 << 3 | 1);  // wall_time
  AppendRaw(&event, static_cast<double>(WallSeconds()));
  event.push_back(2 << 3 | 0);  // step
  AppendVarint(&event, step);
  return event;
}

}  // namespace

Result<EventFile> EventFile::Create(const std::string& directory, std::string_view suffix) {
  const std::string path = directory + "/events.out.tfevents." + std::to_string(WallSeconds()) +
                           "." + std::string(suffix);
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid())
    return Status(ErrorId::kFileWriteFailed, "cannot create " + path + ": " + std::strerror(errno));
  EventFile file(std::move(fd));
  std::string event = EventPrefix(0);
  AppendBytes(&event, 3, "brain.Event:2");
  TP_RETURN_IF_ERROR(file.Record(event));
  return file;
}

Status EventFile::Scalar(std::string_view tag, uint64_t step, float value) {
  std::string summary_value;
  AppendBytes(&summary_value, 1, tag);
  summary_value.push_back(2 << 3 | 5);  // simple_value
  AppendRaw(&summary_value, value);
  std::string summary;
  AppendBytes(&summary, 1, summary_value);
  std::string event = EventPrefix(step);
  AppendBytes(&event, 5, summary);
  return Record(event);
}

Status EventFile::Record(std::string_view message) {
  std::string record;
  AppendRaw(&record, static_cast<uint64_t>(message.size()));
  AppendRaw(&record, MaskedCrc(record));
  record.append(message);
  AppendRaw(&record, MaskedCrc(message));
  if (write(fd_.get(), record.data(), record.size()) != static_cast<ssize_t>(record.size())) {
    return Status(ErrorId::kFileWriteFailed,
                  std::string("cannot write the TensorBoard event file: ") + std::strerror(errno));
  }
  return {};
}

}  // namespace tidepool::trainer
