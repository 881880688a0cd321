// Status: an error, for callers (an id and a class) and for people (what, where, why, fix).
//
// Any thread; a value type. An ok Status costs one null pointer. Callers branch on id() or code()
// only, never on the text.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/error_catalog.h"

namespace tidepool {

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // An error of the catalogue. `what` is one sentence with the relevant numbers.
  Status(ErrorId id, std::string what);

  // Adds where it happened (file:line, flag, rank, chunk), why, or a better fix than the
  // catalogue's advice.
  Status&& Where(std::string text) &&;
  Status&& Why(std::string text) &&;
  Status&& Fix(std::string text) &&;

  bool ok() const { return detail_ == nullptr; }
  ErrorId id() const { return detail_ ? detail_->id : ErrorId::kNone; }
  Code code() const { return detail_ ? ErrorEntryOf(detail_->id).code : Code::kOk; }
  // Exit code of a program that ends with this status; 0 if ok.
  int exit_code() const { return detail_ ? ErrorEntryOf(detail_->id).exit_code : kExitOk; }
  const std::string& what() const;
  // The added parts, empty if not given; they travel with an error that is sent to another process.
  std::string where() const { return detail_ ? detail_->where : std::string(); }
  std::string why() const { return detail_ ? detail_->why : std::string(); }
  std::string fix() const { return detail_ ? detail_->fix : std::string(); }

  // Several lines for people: error[TP2101]: ..., where, why, fix. "ok" if ok.
  std::string Format() const;
  // One line for logs and messages over the wire: "TP2101 PoolFull: ...".
  std::string Line() const;

 private:
  struct Detail {
    ErrorId id;
    std::string what, where, why, fix;
  };
  std::shared_ptr<Detail> detail_;
};

// A value, or the Status that says why there is none. `value()` requires ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINT: implicit, so that functions return either.
  Result(T value) : value_(std::make_unique<T>(std::move(value))) {}
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return value_ != nullptr; }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() { return *value_; }
  T* operator->() { return value_.get(); }

 private:
  Status status_;
  std::unique_ptr<T> value_;
};

}  // namespace tidepool

#define TP_RETURN_IF_ERROR(expression)            \
  do {                                            \
    ::tidepool::Status tp_status_ = (expression); \
    if (!tp_status_.ok()) return tp_status_;      \
  } while (false)

#define TP_CONCAT_INNER(a, b) a##b
#define TP_CONCAT(a, b) TP_CONCAT_INNER(a, b)
// TP_ASSIGN_OR_RETURN(auto x, MakeX()): binds the value or returns the Status.
#define TP_ASSIGN_OR_RETURN(declaration, expression) \
  TP_ASSIGN_OR_RETURN_INNER(TP_CONCAT(tp_result_, __LINE__), declaration, expression)
#define TP_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) return result.status();                        \
  declaration = std::move(result).value()
