// Fields: reads members of one JSON object by name and type, and remembers the first that is
// missing or has another type.
//
// One thread. Only views read answers. This header only forward-declares Boost.JSON's values: doors
// are view_fields.cpp and views.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace boost::json {
class value;
class object;
}  // namespace boost::json

namespace tidepool::client {

class Fields {
 public:
  using Value = boost::json::value;
  // Both outlive this object. The first error is written to `wrong`.
  Fields(const Value& value, std::string* wrong);

  // Each reads one member of that type.
  Fields& Read(const char* key, uint64_t* out);
  // null becomes 0: the server writes null for numbers that JSON cannot hold, such as NaN.
  Fields& Read(const char* key, double* out);
  // null becomes an empty text.
  Fields& Read(const char* key, std::string* out);
  Fields& Read(const char* key, bool* out);
  // Optional members.
  Fields& ReadIfThere(const char* key, std::string* out);
  Fields& ReadIfThere(const char* key, bool* out);
  bool Has(const char* key) const;
  Fields Object(const char* key);
  // Calls `each` with every element; with none if the member is not an array.
  Fields& Array(const char* key, const std::function<void(const Value&)>& each);
  bool IsNull(const char* key);
  Fields& Members(const std::function<void(const std::string&, const Value&)>& each);
  std::string* wrong() const { return wrong_; }

 private:
  const Value* Find(const char* key);
  void Fail(const std::string& what);

  const boost::json::object* object_;
  std::string* wrong_;
};

// Parses `text` and calls `read` with its fields. Errors: kHandshakeBad (not JSON, or a field is
// missing or has another type).
Status ReadFields(std::string_view text, const std::function<void(Fields&)>& read);

// The same, into a view.
template <typename View, typename ReadAll>
Result<View> ReadDocument(std::string_view text, ReadAll read) {
  View view;
  TP_RETURN_IF_ERROR(ReadFields(text, [&](Fields& fields) { read(fields, &view); }));
  return view;
}

}  // namespace tidepool::client
