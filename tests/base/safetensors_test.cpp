#include "base/formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"

namespace tidepool {
namespace safetensors_test {

SafetensorsHeader ThreeTensors() {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"step \"7\"", "line\nbreak"}};
  header.tensors = {{.name = "wte.weight", .dtype = "F32", .shape = {5, 3}},
                    {.name = "scalar", .dtype = "BF16", .shape = {}},
                    {.name = "nothing", .dtype = "I64", .shape = {0, 4}},
                    {.name = "h.0.ätt", .dtype = "U8", .shape = {3}}};
  return header;
}

std::vector<std::byte> FileOf(SafetensorsHeader header) {
  auto prefix = EncodeSafetensorsHeader(&header);
  EXPECT_TRUE(prefix.ok()) << prefix.status().Format();
  std::vector<std::byte> file(prefix->size() +
                              (header.tensors.empty() ? 0 : header.tensors.back().end));
  std::memcpy(file.data(), prefix->data(), prefix->size());
  return file;
}

Result<SafetensorsHeader> Decode(std::string json, uint64_t data_bytes) {
  return DecodeSafetensorsHeader(json, data_bytes);
}

TEST(Safetensors, WhatWasWrittenIsReadBack) {
  const std::vector<std::byte> file = FileOf(ThreeTensors());
  uint64_t data_begin = 0;
  auto header = DecodeSafetensors(file, &data_begin);
  ASSERT_TRUE(header.ok()) << header.status().Format();
  EXPECT_EQ(data_begin % 8, 0u);
  EXPECT_EQ(header->metadata, ThreeTensors().metadata);
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].name, "wte.weight");
  EXPECT_EQ(header->tensors[0].shape, (std::vector<uint64_t>{5, 3}));
  EXPECT_EQ(header->tensors[0].end, 60u);
  EXPECT_EQ(header->tensors[1].begin, 60u);
  EXPECT_EQ(header->tensors[1].end, 62u);
  EXPECT_EQ(header->tensors[1].dtype, "BF16");
  EXPECT_EQ(header->tensors[3].name, "h.0.ätt");
  EXPECT_EQ(header->tensors[3].end, 65u);
}

TEST(Safetensors, AnEmptyFileOfNoTensorsIsValid) {
  uint64_t data_begin = 0;
  EXPECT_TRUE(DecodeSafetensors(FileOf({}), &data_begin).ok());
}

TEST(Safetensors, TheTextIsWhatOtherReadersExpect) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.tensors = {{.name = "a", .dtype = "F32", .shape = {2, 3}}};
  auto text = EncodeSafetensorsHeader(&header);
  ASSERT_TRUE(text.ok());
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  EXPECT_EQ(text->substr(8, json.size()), json);
  EXPECT_EQ(text->size() % 8, 0u);
  EXPECT_EQ(text->find_first_not_of(' ', 8 + json.size()), std::string::npos);
}

TEST(Safetensors, EveryTruncationIsACleanError) {
  const std::vector<std::byte> file = FileOf(ThreeTensors());
  for (size_t length = 0; length < file.size(); ++length) {
    uint64_t data_begin = 0;
    auto header = DecodeSafetensors(std::span(file).first(length), &data_begin);
    ASSERT_FALSE(header.ok()) << "cut at byte " << length;
    ASSERT_EQ(header.status().id(), ErrorId::kSafetensorsBad);
  }
}

TEST(Safetensors, AByteTooManyIsAnError) {
  std::vector<std::byte> file = FileOf(ThreeTensors());
  file.push_back(std::byte{0});
  uint64_t data_begin = 0;
  EXPECT_FALSE(DecodeSafetensors(file, &data_begin).ok());
}

// What DecodeSafetensorsHeader promises of everything that it lets pass.
void ExpectInvariants(const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    uint64_t bytes = SafetensorsElementBytes(entry.dtype);
    ASSERT_NE(bytes, 0u);
    for (const uint64_t dim : entry.shape) bytes *= dim;
    ASSERT_EQ(entry.begin, at);
    ASSERT_EQ(entry.end - entry.begin, bytes);
    at = entry.end;
  }
  ASSERT_EQ(at, data_bytes);
}

TEST(Safetensors, MutatedFilesNeverBreakAPromise) {
  const std::vector<std::byte> good = FileOf(ThreeTensors());
  constexpr std::string_view kNasty = "{}[]\",:0123456789-.eE \\u\0\xff";
  SplitMix64 random(2024);
  int accepted = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::vector<std::byte> file = good;
    const uint64_t edits = 1 + random.Below(4);
    for (uint64_t i = 0; i < edits; ++i) {
      const uint64_t at = random.Below(file.size());
      switch (random.Below(4)) {
        case 0: file[at] = static_cast<std::byte>(random.Next()); break;
        case 1: file[at] = static_cast<std::byte>(kNasty[random.Below(kNasty.size())]); break;
        case 2: file.erase(file.begin() + static_cast<int64_t>(at)); break;
        default:
          file.insert(file.begin() + static_cast<int64_t>(at),
                      static_cast<std::byte>(kNasty[random.Below(kNasty.size())]));
      }
    }
    uint64_t data_begin = 0;
    auto header = DecodeSafetensors(file, &data_begin);
    if (!header.ok()) {
      ASSERT_EQ(header.status().id(), ErrorId::kSafetensorsBad);
      continue;
    }
    ++accepted;
    ASSERT_LE(data_begin, file.size());
    ExpectInvariants(*header, file.size() - data_begin);
  }
  EXPECT_GT(accepted, 0) << "an edit of a name's letter or of a data byte leaves a valid file";
}

TEST(Safetensors, BadHeadersAreNamed) {
  struct Case {
    const char* json;
    uint64_t data_bytes;
    const char* why;
  };
  const Case cases[] = {
      {R"([])", 0, "does not begin"},
      {R"( {})", 0, "does not begin"},
      {R"({} x)", 0, "near its byte"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
       4, "twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "twice"},
      {R"({"__metadata__":{"k":1}})", 0, "number"},
      {R"({"__metadata__":[]})", 0, "array"},
      {R"({"a":5})", 0, "number"},
      {R"({"a":"F32"})", 0, "text"},
      {R"({"a":null})", 0, "null"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "lacks"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":[1]}})", 4, "unknown field"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "pair"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "do not span"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "do not span"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "negative"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "whole"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", 4, "whole"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "array"},
      {R"({"a":{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}})", 4, "object"},
      {R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", 4, "object"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "begins at"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "begins at"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
       9, "begins at"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5, "the file holds 5"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
       1, "near its byte"},
  };
  for (const Case& each : cases) {
    auto header = Decode(each.json, each.data_bytes);
    ASSERT_FALSE(header.ok()) << each.json;
    EXPECT_EQ(header.status().id(), ErrorId::kSafetensorsBad);
    EXPECT_NE(header.status().Format().find(each.why), std::string::npos)
        << each.json << "\n"
        << header.status().Format();
  }
}

TEST(Safetensors, TensorsMayStandInAnyOrderInTheText) {
  auto header = Decode(
      R"({"b":{"data_offsets":[4,5],"shape":[1],"dtype":"U8"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
      5);
  ASSERT_TRUE(header.ok()) << header.status().Format();
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].name, "b");
}

TEST(Safetensors, AHugeLengthWordIsRefusedBeforeMemoryIsTaken) {
  std::vector<std::byte> file(64, std::byte{0x7F});  // claims 0x7F7F7F7F7F7F7F7F bytes
  uint64_t data_begin = 0;
  auto header = DecodeSafetensors(file, &data_begin);
  ASSERT_FALSE(header.ok());
  EXPECT_NE(header.status().what().find("limit"), std::string::npos);
}

TEST(Safetensors, DeepNestingIsRefused) {
  EXPECT_FALSE(Decode("{\"a\":" + std::string(100'000, '['), 0).ok());
  EXPECT_FALSE(Decode("{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{}}}}}}", 0).ok());
}

TEST(Safetensors, WhatCannotBeReadBackIsNotWritten) {
  SafetensorsHeader twice;
  twice.tensors = {{.name = "a", .dtype = "F32", .shape = {1}},
                   {.name = "a", .dtype = "F32", .shape = {1}}};
  EXPECT_FALSE(EncodeSafetensorsHeader(&twice).ok());
  SafetensorsHeader reserved;
  reserved.tensors = {{.name = "__metadata__", .dtype = "F32", .shape = {1}}};
  EXPECT_FALSE(EncodeSafetensorsHeader(&reserved).ok());
  SafetensorsHeader unknown;
  unknown.tensors = {{.name = "a", .dtype = "FP32", .shape = {1}}};
  EXPECT_FALSE(EncodeSafetensorsHeader(&unknown).ok());
  SafetensorsHeader large;
  large.tensors = {{.name = "a", .dtype = "U8", .shape = {std::numeric_limits<uint64_t>::max()}}};
  EXPECT_FALSE(EncodeSafetensorsHeader(&large).ok());
}

}  // namespace safetensors_test
}  // namespace tidepool
