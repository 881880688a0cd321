#include "base/text/json_quote.h"
#include "base/text/json_writer.h"

#include <limits>

#include <gtest/gtest.h>

namespace tidepool {
namespace json_writer_test {

TEST(JsonWriter, NestsObjectsAndArraysWithTheirCommas) {
  JsonWriter json;
  json.BeginObject()
      .Field("job", 7)
      .Key("ranks")
      .BeginArray()
      .Int(-1)
      .Uint(2)
      .BeginObject()
      .EndObject()
      .EndArray();
  json.Field("name", "gpt").Field("ready", true).Key("lease").Null().EndObject();
  EXPECT_EQ(json.Take(), R"({"job":7,"ranks":[-1,2,{}],"name":"gpt","ready":true,"lease":null})");
}

TEST(JsonWriter, EmptyContainersAndBareValues) {
  EXPECT_EQ(JsonWriter().BeginObject().EndObject().text(), "{}");
  EXPECT_EQ(JsonWriter().BeginArray().EndArray().text(), "[]");
  EXPECT_EQ(JsonWriter().String("x").text(), "\"x\"");
}

TEST(JsonWriter, IntegersKeepEveryDigit) {
  EXPECT_EQ(JsonWriter().Uint(std::numeric_limits<uint64_t>::max()).text(), "18446744073709551615");
  EXPECT_EQ(JsonWriter().Int(std::numeric_limits<int64_t>::min()).text(), "-9223372036854775808");
}

TEST(JsonWriter, DoublesReadBackTheSame) {
  for (const double value : {0.1, 1.0 / 3, 1e-300, 12345678.9, -2.5}) {
    EXPECT_EQ(std::stod(JsonWriter().Double(value).text()), value);
  }
}

TEST(JsonWriter, WhatJsonCannotSayBecomesNull) {
  JsonWriter json;
  json.BeginArray()
      .Double(std::numeric_limits<double>::quiet_NaN())
      .Double(std::numeric_limits<double>::infinity())
      .EndArray();
  EXPECT_EQ(json.text(), "[null,null]");
}

TEST(Quoted, EscapesControlCharactersAndQuotes) {
  EXPECT_EQ(QuoteJson("a\"b\\c\n\t\r"), "\"a\\\"b\\\\c\\n\\t\\r\"");
  EXPECT_EQ(QuoteJson(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\\u007f\"");
}

TEST(Quoted, KeepsUtf8AndReplacesWhatIsNot) {
  EXPECT_EQ(QuoteJson("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8A"),
            "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8A\"");
  const std::string replacement = "\xEF\xBF\xBD";
  EXPECT_EQ(QuoteJson("\xFF"), "\"" + replacement + "\"");
  EXPECT_EQ(QuoteJson("\xC3"), "\"" + replacement + "\"") << "cut short";
  EXPECT_EQ(QuoteJson("\xC0\xAF"), "\"" + replacement + replacement + "\"") << "overlong";
  EXPECT_EQ(QuoteJson("\xED\xA0\x80"), "\"" + replacement + replacement + replacement + "\"")
      << "surrogate";
}

TEST(JsonWriterDeathTest, AMistakeOfTheCallerStopsTheProcess) {
  EXPECT_DEATH(JsonWriter().EndObject(), "EndObject without BeginObject");
  EXPECT_DEATH(JsonWriter().Key("x"), "Key outside an object");
  EXPECT_DEATH(
      {
        JsonWriter json;
        json.BeginArray();
        json.Take();
      },
      "Take before");
}

}  // namespace json_writer_test
}  // namespace tidepool
