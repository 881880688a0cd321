#include "memserver/jobs/saves/save_lanes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::memserver {

void SaveLanes::Tidy() {
  std::erase_if(lanes_, [](const Lane& lane) { return lane.holder.expired(); });
}

size_t SaveLanes::CountOf(uint32_t uid) const {
  const auto of_user = [uid](const Lane& lane) {
    return lane.uid == uid || TP_PLANTED("saves.one_user_takes_all");
  };
  return static_cast<size_t>(std::count_if(lanes_.begin(), lanes_.end(), of_user));
}

bool SaveLanes::HasFree(uint32_t uid) {
  Tidy();
  const size_t own = CountOf(uid);
  const size_t kept = own == 0 || TP_PLANTED("saves.no_lane_for_others") ? 0 : kForOthers;
  return own < kOfUser && lanes_.size() + kept < kOfAll;
}

std::shared_ptr<const void> SaveLanes::Take(uint32_t uid, ConnectionId connection,
                                            std::string what) {
  TP_CHECK(HasFree(uid), "a lane is free");
  auto holder = std::make_shared<const char>();
  lanes_.push_back({holder, uid, connection, std::move(what)});
  return holder;
}

void SaveLanes::End(ConnectionId connection) {
  for (Lane& lane : lanes_) lane.answered |= lane.connection == connection;
}

bool SaveLanes::AllStuck(uint32_t uid) {
  Tidy();
  const auto stuck = [uid](const Lane& lane) { return lane.uid == uid && lane.answered; };
  return static_cast<size_t>(std::count_if(lanes_.begin(), lanes_.end(), stuck)) == kOfUser;
}

std::string SaveLanes::WhatHolds(uint32_t uid) {
  Tidy();
  std::string held;
  for (const Lane& lane : lanes_) {
    if (lane.uid != uid) continue;
    held += (held.empty() ? "" : ", ") + lane.what;
    if (lane.answered) held += " (given up, its file system has not answered yet)";
  }
  return held;
}

}  // namespace tidepool::memserver
