// Fields: the members of one object of an answer, taken by name and kind; what is missing or of
// another kind is remembered.
//
// One thread. Only views read answers. The header knows Boost.JSON's values by name alone: doors
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
  // Both outlive this object. The first thing that is wrong is written to `wrong`.
  Fields(const Value& value, std::string* wrong);

  // Each takes one member of that kind.
  Fields& Read(const char* key, uint64_t* out);
  // null is read as NaN's stand-in, 0: the server writes it for numbers that JSON cannot hold.
  Fields& Read(const char* key, double* out);
  // null is an empty text.
  Fields& Read(const char* key, std::string* out);
  Fields& Read(const char* key, bool* out);
  // What may be left out.
  Fields& ReadIfThere(const char* key, std::string* out);
  Fields& ReadIfThere(const char* key, bool* out);
  bool Has(const char* key) const;
  Fields Object(const char* key);
  // Calls `each` with every element; an empty loop when it is no array.
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

// Parses `text` and lets `read` take its fields. Errors: kHandshakeBad (not JSON, a field is
// missing or of another kind).
Status ReadFields(std::string_view text, const std::function<void(Fields&)>& read);

// The same, into a view.
template <typename View, typename ReadAll>
Result<View> ReadDocument(std::string_view text, ReadAll read) {
  View view;
  TP_RETURN_IF_ERROR(ReadFields(text, [&](Fields& fields) { read(fields, &view); }));
  return view;
}

}  // namespace tidepool::client
