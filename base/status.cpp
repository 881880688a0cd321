#include "base/status.h"

namespace tidepool {

Status::Status(ErrorId id, std::string what) : detail_(std::make_shared<Detail>()) {
  detail_->id = id;
  detail_->what = std::move(what);
}

Status&& Status::Where(std::string text) && {
  detail_->where = std::move(text);
  return std::move(*this);
}

Status&& Status::Why(std::string text) && {
  detail_->why = std::move(text);
  return std::move(*this);
}

Status&& Status::Fix(std::string text) && {
  detail_->fix = std::move(text);
  return std::move(*this);
}

const std::string& Status::what() const {
  static const std::string ok = "ok";
  return detail_ ? detail_->what : ok;
}

std::string Status::Format() const {
  if (ok()) return "ok";
  std::string text =
      "error[TP" + std::to_string(static_cast<int>(detail_->id)) + "]: " + detail_->what;
  if (!detail_->where.empty()) text += "\n   where: " + detail_->where;
  if (!detail_->why.empty()) text += "\n   why:   " + detail_->why;
  text += "\n   fix:   ";
  text += detail_->fix.empty() ? ErrorEntryOf(detail_->id).advice : detail_->fix;
  return text;
}

std::string Status::Line() const {
  if (ok()) return "ok";
  const ErrorEntry& entry = ErrorEntryOf(detail_->id);
  return "TP" + std::to_string(static_cast<int>(detail_->id)) + " " + entry.name + ": " +
         detail_->what;
}

}  // namespace tidepool
