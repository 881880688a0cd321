// PeerMemory: counts and bounds the memory that clients make memserver hold besides the pool
// (descriptions and schedules in transit, descriptions of jobs and of waiting ranks), per user and
// in all: one user cannot take the room of the others, nor all of them the machine's.
//
// Any thread. A Share returns its bytes when it ends, on whatever thread that is; it may outlive
// the PeerMemory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace tidepool::memserver {

// The bounds, in bytes.
struct PeerMemoryLimits {
  // The largest possible description, encoded and then decoded, plus some room.
  uint64_t user = 192 * kMiB;
  uint64_t all = 384 * kMiB;
  // A user below this bound gets memory even when others have taken the rest: nearly all
  // descriptions fit in it.
  uint64_t always = 1 * kMiB;
};

class PeerMemory {
 private:
  struct Book {
    PeerMemoryLimits limits;
    std::mutex mutex;  // held for a few instructions
    std::map<uint32_t, uint64_t> users;
    uint64_t all = 0;
  };

 public:
  // The bytes of one allocation of a user.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : book_(std::move(other.book_)), uid_(other.uid_), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(book_, other.book_);
      std::swap(uid_, other.uid_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share();
    // Grows or shrinks the share. Errors: kNotReady (no room now; the share is unchanged).
    Status Resize(uint64_t bytes);
    uint64_t bytes() const { return bytes_; }

   private:
    friend class PeerMemory;
    Share(std::shared_ptr<Book> book, uint32_t uid) : book_(std::move(book)), uid_(uid) {}
    std::shared_ptr<Book> book_;  // null: not counted
    uint32_t uid_ = 0;
    uint64_t bytes_ = 0;
  };

  explicit PeerMemory(const PeerMemoryLimits& limits = {}) : book_(std::make_shared<Book>()) {
    book_->limits = limits;
  }
  // Opens an empty share.
  Share Open(uint32_t uid) const { return Share(book_, uid); }
  uint64_t bytes() const;

 private:
  std::shared_ptr<Book> book_;
};

}  // namespace tidepool::memserver
