#include "client/admin/view_fields.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

namespace tidepool::client {
namespace {

namespace json = boost::json;

Status Bad(const std::string& what) {
  return Status(ErrorId::kHandshakeBad, "memserver's answer is not understood: " + what)
      .Fix("install memctl and memserver of the same release");
}

}  // namespace

Fields::Fields(const Value& value, std::string* wrong) : object_(value.if_object()), wrong_(wrong) {
  if (object_ == nullptr) Fail("an object");
}

const Fields::Value* Fields::Find(const char* key) {
  const json::value* value = object_ == nullptr ? nullptr : object_->if_contains(key);
  if (value == nullptr) Fail(key);
  return value;
}

void Fields::Fail(const std::string& what) {
  if (wrong_->empty()) *wrong_ = "'" + what + "' is missing or of another kind";
}

Fields& Fields::Read(const char* key, uint64_t* out) {
  const json::value* value = Find(key);
  if (value == nullptr) return *this;
  if (value->is_uint64()) {
    *out = value->get_uint64();
  } else if (value->is_int64() && value->get_int64() >= 0) {
    *out = static_cast<uint64_t>(value->get_int64());
  } else {
    Fail(key);
  }
  return *this;
}

Fields& Fields::Read(const char* key, double* out) {
  const json::value* value = Find(key);
  if (value == nullptr) return *this;
  if (value->is_number()) {
    *out = value->to_number<double>();
  } else if (!value->is_null()) {
    Fail(key);
  }
  return *this;
}

Fields& Fields::Read(const char* key, std::string* out) {
  const json::value* value = Find(key);
  if (value == nullptr) return *this;
  if (value->is_string()) {
    *out = std::string(value->get_string());
  } else if (!value->is_null()) {
    Fail(key);
  }
  return *this;
}

Fields& Fields::Read(const char* key, bool* out) {
  const json::value* value = Find(key);
  if (value == nullptr) return *this;
  value->is_bool() ? void(*out = value->get_bool()) : Fail(key);
  return *this;
}

Fields& Fields::ReadIfThere(const char* key, std::string* out) {
  if (Has(key)) Read(key, out);
  return *this;
}

Fields& Fields::ReadIfThere(const char* key, bool* out) {
  if (Has(key)) Read(key, out);
  return *this;
}

bool Fields::Has(const char* key) const {
  return object_ != nullptr && object_->if_contains(key) != nullptr;
}

Fields Fields::Object(const char* key) {
  static const json::value none;
  const json::value* value = Find(key);
  // By reference: a temporary would not live long enough.
  return Fields(value == nullptr ? none : *value, wrong_);
}

Fields& Fields::Array(const char* key, const std::function<void(const Value&)>& each) {
  const json::value* value = Find(key);
  if (value == nullptr) return *this;
  if (!value->is_array()) {
    Fail(key);
    return *this;
  }
  for (const json::value& element : value->get_array()) each(element);
  return *this;
}

bool Fields::IsNull(const char* key) {
  const json::value* value = Find(key);
  return value != nullptr && value->is_null();
}

Fields& Fields::Members(const std::function<void(const std::string&, const Value&)>& each) {
  if (object_ == nullptr) return *this;
  for (const auto& member : *object_) each(std::string(member.key()), member.value());
  return *this;
}

Status ReadFields(std::string_view text, const std::function<void(Fields&)>& read) {
  boost::system::error_code error;
  const json::value value = json::parse({text.data(), text.size()}, error);
  if (error) return Bad(error.message());
  std::string wrong;
  Fields fields(value, &wrong);
  read(fields);
  return wrong.empty() ? Status() : Bad(wrong);
}

}  // namespace tidepool::client
