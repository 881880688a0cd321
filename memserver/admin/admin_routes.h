// Route: a read path of the admin socket, with what it needs and who may ask.
//
// The admin thread only; a constant table. Paths that change something are in admin_changes.h.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "memserver/admin/admin_answer.h"
#include "memserver/admin/read_queries.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {

// What a handler needs. kLook: the last snapshot, without waiting.
enum class Needs { kNothing, kLook, kSnapshot };

struct Route {
  std::array<std::string_view, 4> path;  // "*" stands for any segment
  size_t segments;
  Needs needs;
  AdminAnswer (*handler)(const Ask&);
  std::array<std::string_view, 5> parameters;
  size_t parameter_count;
  AdminLevel least = AdminLevel::kUser;
  bool is_probe = false;  // also answers without a snapshot
};

// In display order.
std::span<const Route> Routes();
// Null if there is no such read path.
const Route* FindRoute(const RequestTarget& target);

}  // namespace tidepool::memserver
