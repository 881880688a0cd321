#include "trainer/output/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "base/clock.h"

namespace tidepool::trainer {
namespace event_file_test {

// CRC32C bit by bit, apart from the table that the writer uses.
uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  return ~crc;
}

uint32_t Masked(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

template <typename T>
T Take(std::string_view* bytes) {
  T value{};
  EXPECT_GE(bytes->size(), sizeof value);
  std::memcpy(&value, bytes->data(), std::min(sizeof value, bytes->size()));
  bytes->remove_prefix(std::min(sizeof value, bytes->size()));
  return value;
}

uint64_t TakeVarint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = Take<uint8_t>(bytes);
    value |= uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

std::string_view TakeBytes(std::string_view* bytes) {
  const uint64_t size = TakeVarint(bytes);
  EXPECT_LE(size, bytes->size());
  const std::string_view taken = bytes->substr(0, size);
  bytes->remove_prefix(taken.size());
  return taken;
}

struct Event {
  double wall_time = 0;
  uint64_t step = 0;
  std::string version, tag;
  std::optional<float> value;
};

void ReadValue(std::string_view message, Event* event) {
  while (!message.empty()) {
    switch (const uint64_t key = TakeVarint(&message); key) {
      case 1 << 3 | 2: event->tag = TakeBytes(&message); break;
      case 2 << 3 | 5: event->value = Take<float>(&message); break;
      default: FAIL() << "field " << key << " in a Summary.Value";
    }
  }
}

void ReadEvent(std::string_view message, Event* event) {
  while (!message.empty()) {
    switch (const uint64_t key = TakeVarint(&message); key) {
      case 1 << 3 | 1: event->wall_time = Take<double>(&message); break;
      case 2 << 3 | 0: event->step = TakeVarint(&message); break;
      case 3 << 3 | 2: event->version = TakeBytes(&message); break;
      case 5 << 3 | 2: {
        std::string_view summary = TakeBytes(&message);
        EXPECT_EQ(TakeVarint(&summary), 1U << 3 | 2U);
        ReadValue(TakeBytes(&summary), event);
        EXPECT_TRUE(summary.empty());
        break;
      }
      default: FAIL() << "field " << key << " in an Event";
    }
  }
}

class EventFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/events-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string FileName() const {
    return std::filesystem::directory_iterator(directory_)->path().string();
  }

  // Reads the file back, checking the frame of every record.
  std::vector<Event> Events() const {
    std::ostringstream text;
    text << std::ifstream(FileName(), std::ios::binary).rdbuf();
    const std::string bytes = text.str();
    std::string_view rest = bytes;
    std::vector<Event> events;
    while (!rest.empty() && !::testing::Test::HasFailure()) {
      const std::string_view length_bytes = rest.substr(0, 8);
      const auto length = Take<uint64_t>(&rest);
      EXPECT_EQ(Take<uint32_t>(&rest), Masked(length_bytes));
      EXPECT_LE(length, rest.size());
      const std::string_view message = rest.substr(0, length);
      rest.remove_prefix(message.size());
      EXPECT_EQ(Take<uint32_t>(&rest), Masked(message));
      ReadEvent(message, &events.emplace_back());
    }
    return events;
  }

  std::string directory_;
};

TEST_F(EventFileTest, TheReferenceCrcIsCastagnolis) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);
}

TEST_F(EventFileTest, ANewFileNamesItsVersion) {
  const int64_t before = WallSeconds();
  ASSERT_TRUE(EventFile::Create(directory_, "tidepool").ok());
  const std::vector<Event> events = Events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GE(events[0].wall_time, static_cast<double>(before));
  EXPECT_LE(events[0].wall_time, static_cast<double>(WallSeconds()));
  EXPECT_THAT(FileName(), ::testing::HasSubstr("/events.out.tfevents."));
  EXPECT_THAT(FileName(), ::testing::EndsWith(".tidepool"));
}

TEST_F(EventFileTest, ScalarsComeBackAsWritten) {
  auto file = EventFile::Create(directory_, "x");
  ASSERT_TRUE(file.ok());
  const std::vector<std::tuple<std::string, uint64_t, float>> written{
      {"loss/train", 1, 3.25F},
      {"", 0, -0.0F},
      {std::string(300, 't'), 127, 1e-30F},
      {"a", 128, 1e30F},
      {"b", uint64_t{1} << 40, 0.1F}};
  for (const auto& [tag, step, value] : written) ASSERT_TRUE(file->Scalar(tag, step, value).ok());
  const std::vector<Event> events = Events();  // while the writer is still open
  ASSERT_EQ(events.size(), written.size() + 1);
  for (size_t i = 0; i < written.size(); ++i) {
    EXPECT_EQ(events[i + 1].tag, std::get<0>(written[i]));
    EXPECT_EQ(events[i + 1].step, std::get<1>(written[i]));
    ASSERT_TRUE(events[i + 1].value.has_value());
    EXPECT_EQ(std::bit_cast<uint32_t>(*events[i + 1].value),
              std::bit_cast<uint32_t>(std::get<2>(written[i])));
  }
}

TEST_F(EventFileTest, ANanIsKept) {
  auto file = EventFile::Create(directory_, "x");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Scalar("loss", 1, std::numeric_limits<float>::quiet_NaN()).ok());
  EXPECT_TRUE(Events().at(1).value.value() != Events().at(1).value.value());
}

TEST_F(EventFileTest, ADirectoryThatIsNotThereIsAnError) {
  const auto file = EventFile::Create(directory_ + "/none", "x");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().id(), ErrorId::kFileWriteFailed);
  EXPECT_THAT(file.status().what(),
              ::testing::HasSubstr(directory_ + "/none/events.out.tfevents."));
}

TEST_F(EventFileTest, AFullDiskIsAnError) {
  // /dev/full refuses every write; a link puts it where the file would be made.
  for (int64_t second = WallSeconds(); second < WallSeconds() + 120; ++second) {
    std::filesystem::create_symlink(
        "/dev/full", directory_ + "/events.out.tfevents." + std::to_string(second) + ".x");
  }
  const auto file = EventFile::Create(directory_, "x");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().id(), ErrorId::kFileWriteFailed);
}

}  // namespace event_file_test
}  // namespace tidepool::trainer
