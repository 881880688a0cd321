#include "base/text/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/text/json_quote.h"

namespace tidepool {

void JsonWriter::BeforeValue() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_item_.empty()) return;
  if (has_item_.back()) text_ += ',';
  has_item_.back() = true;
}

JsonWriter& JsonWriter::BeginObject() {
  BeforeValue();
  text_ += '{';
  has_item_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::EndObject() {
  TP_CHECK(!has_item_.empty() && !after_key_, "EndObject without BeginObject");
  has_item_.pop_back();
  text_ += '}';
  return *this;
}

JsonWriter& JsonWriter::BeginArray() {
  BeforeValue();
  text_ += '[';
  has_item_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::EndArray() {
  TP_CHECK(!has_item_.empty() && !after_key_, "EndArray without BeginArray");
  has_item_.pop_back();
  text_ += ']';
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  TP_CHECK(!has_item_.empty() && !after_key_, "Key outside an object");
  BeforeValue();
  text_ += QuoteJson(key);
  text_ += ':';
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  BeforeValue();
  text_ += QuoteJson(value);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  BeforeValue();
  text_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::Uint(uint64_t value) {
  BeforeValue();
  text_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::Double(double value) {
  if (!std::isfinite(value)) return Null();
  BeforeValue();
  std::array<char, 40> buffer{};
  const auto done = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  text_.append(buffer.data(), done.ptr);
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  BeforeValue();
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Null() {
  BeforeValue();
  text_ += "null";
  return *this;
}

std::string JsonWriter::Take() {
  TP_CHECK(has_item_.empty() && !after_key_, "Take before every object is closed");
  return std::move(text_);
}

}  // namespace tidepool
