// JsonWriter: appends well-formed JSON to a string; it handles commas, quotes and escapes.
//
// One thread. The caller opens and closes objects and arrays in order; a mistake is a bug and stops
// the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

class JsonWriter {
 public:
  // Structure. A key comes in an object, before its value.
  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view key);

  // Values: one after each key, any number in an array.
  JsonWriter& String(std::string_view value);
  JsonWriter& Int(int64_t value);
  JsonWriter& Uint(uint64_t value);
  // Shortest form that parses to the same value; NaN and infinities become null.
  JsonWriter& Double(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();

  // Key and value in one call.
  JsonWriter& Field(std::string_view key, std::string_view value) { return Key(key).String(value); }
  JsonWriter& Field(std::string_view key, const char* value) { return Key(key).String(value); }
  JsonWriter& Field(std::string_view key, const std::string& value) {
    return Key(key).String(value);
  }
  JsonWriter& Field(std::string_view key, bool value) { return Key(key).Bool(value); }
  JsonWriter& Field(std::string_view key, double value) { return Key(key).Double(value); }
  JsonWriter& Field(std::string_view key, int value) { return Key(key).Int(value); }
  JsonWriter& Field(std::string_view key, int64_t value) { return Key(key).Int(value); }
  JsonWriter& Field(std::string_view key, uint32_t value) { return Key(key).Uint(value); }
  JsonWriter& Field(std::string_view key, uint64_t value) { return Key(key).Uint(value); }

  // The text so far; complete when every object and array is closed.
  const std::string& text() const { return text_; }
  std::string Take();

 private:
  void BeforeValue();
  std::string text_;
  std::vector<bool> has_item_;  // one per open object or array
  bool after_key_ = false;
};

}  // namespace tidepool
