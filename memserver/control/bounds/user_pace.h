// UserPace: bounds the control thread's work for one user. Everything that clients send costs it
// work: packets, and decoded descriptions, refused ones included. When a user has spent its share,
// none of its connections is read until the share has grown again; connections of other users are
// read meanwhile.
//
// One thread (control). Time is passed in. Work is counted in decoded bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/units.h"

namespace tidepool::memserver {

// A user's share, in bytes of descriptions.
struct UserPaceLimits {
  // At once: all ranks of a large job, or the largest possible description.
  uint64_t burst = 64 * kMiB;
  uint64_t per_second = 32 * kMiB;  // sustained rate: a fraction of one CPU
};

class UserPace {
 public:
  static constexpr uint64_t kConnection = 16 * kKiB;  // cost of one, from accept to close
  static constexpr uint64_t kPacket = 4 * kKiB;
  static constexpr uint64_t kAtDoor = 64 * kKiB;  // a packet with descriptors (descriptor_door.h)
  // Received and hashed bytes that count as one decoded byte.
  static constexpr uint64_t kBytesMovedAsOne = 8;

  explicit UserPace(const UserPaceLimits& limits = {}) : limits_(limits) {}

  // Takes `work` from the user's share.
  void Spend(uint32_t uid, uint64_t work, int64_t now_ns);
  // How long the user's connections are not read; 0: they are read.
  int64_t PauseNs(uint32_t uid, int64_t now_ns) const;

 private:
  static constexpr size_t kUsersMax = 1024;  // beyond that, users without a debt are forgotten
  struct Debt {
    uint64_t work = 0;
    int64_t at_ns = 0;
  };
  uint64_t Left(const Debt& debt, int64_t now_ns) const;

  UserPaceLimits limits_;
  std::map<uint32_t, Debt> users_;
};

}  // namespace tidepool::memserver
