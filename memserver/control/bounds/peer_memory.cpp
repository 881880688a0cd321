#include "memserver/control/bounds/peer_memory.h"

#include <string>

#include "base/planted.h"

namespace tidepool::memserver {

PeerMemory::Share::~Share() {
  if (bytes_ == 0 || book_ == nullptr || TP_PLANTED("jobs.peer_memory_not_given_back")) return;
  const std::lock_guard lock(book_->mutex);
  book_->all -= bytes_;
  const auto user = book_->users.find(uid_);
  user->second -= bytes_;
  if (user->second == 0) book_->users.erase(user);
}

Status PeerMemory::Share::Resize(uint64_t bytes) {
  if (book_ == nullptr) return Status();
  const std::lock_guard lock(book_->mutex);
  const PeerMemoryLimits& limits = book_->limits;
  const auto found = book_->users.find(uid_);
  const uint64_t others = (found == book_->users.end() ? 0 : found->second) - bytes_;
  const uint64_t of_user = others + bytes, of_all = book_->all - bytes_ + bytes;
  const bool user_full = of_user > limits.user,
             all_full = of_all > limits.all && of_user > limits.always;

  if (bytes > bytes_ && (user_full || all_full) && !TP_PLANTED("jobs.peer_memory_unbounded")) {
    return Status(ErrorId::kNotReady, "memserver takes no more descriptions of jobs at once: " +
                                          FormatBytes(user_full ? others : of_all - bytes) +
                                          (user_full ? " are held for user " + std::to_string(uid_)
                                                     : std::string(" are held for all users")) +
                                          ", " + FormatBytes(bytes) + " were asked for, " +
                                          FormatBytes(user_full ? limits.user : limits.all) +
                                          " are the limit")
        .Fix(
            "try again in a moment: a greeting that is not finished in time is ended; jobs that "
            "end or leave the queue make room");
  }

  book_->all = of_all;
  book_->users[uid_] = of_user;
  if (of_user == 0) book_->users.erase(uid_);
  bytes_ = bytes;
  return Status();
}

uint64_t PeerMemory::bytes() const {
  const std::lock_guard lock(book_->mutex);
  return book_->all;
}

}  // namespace tidepool::memserver
