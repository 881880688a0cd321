#include "memserver/control/access.h"

#include <grp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace tidepool::memserver {
namespace {

constexpr int kPeerGroups = 59;  // SO_PEERGROUPS, missing in headers of older C libraries
constexpr size_t kGroupsMax = 65536;

Result<uint32_t> GroupOf(const std::string& name) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size()) return number;
  group record{};
  group* found = nullptr;
  std::vector<char> texts(64 * 1024);
  getgrnam_r(name.c_str(), &record, texts.data(), texts.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return Status(ErrorId::kConfigBadValue, "there is no group '" + name + "' on this machine")
      .Fix("groupadd --system " + name);
}

bool Has(const PeerUser& user, uint32_t group) {
  return std::find(user.groups.begin(), user.groups.end(), group) != user.groups.end();
}

}  // namespace

Access PrivateAccess() {
  Access access;
  access.owner = geteuid();
  return access;
}

Result<Access> ServiceAccess(const std::string& group, const std::string& operator_group) {
  Access access = PrivateAccess();
  access.is_service = true;
  TP_ASSIGN_OR_RETURN(access.group, GroupOf(group));
  TP_ASSIGN_OR_RETURN(access.operator_group, GroupOf(operator_group));
  return access;
}

Result<PeerUser> UserAt(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return Status(ErrorId::kHandshakeBad, "the peer of a connection cannot be identified")
        .Why(std::strerror(errno));
  }

  PeerUser user{credentials.uid, credentials.pid, std::vector<uint32_t>(256)};
  length = static_cast<socklen_t>(user.groups.size() * sizeof(uint32_t));
  int done = getsockopt(socket, SOL_SOCKET, kPeerGroups, user.groups.data(), &length);
  if (done != 0 && errno == ERANGE && length <= kGroupsMax * sizeof(uint32_t)) {
    user.groups.resize(length / sizeof(uint32_t));
    done = getsockopt(socket, SOL_SOCKET, kPeerGroups, user.groups.data(), &length);
  }
  user.groups.resize(done == 0 ? length / sizeof(uint32_t) : 0);
  user.groups.push_back(credentials.gid);
  return user;
}

const char* NameOf(AdminLevel level) {
  constexpr std::array<const char*, 4> kNames{"none", "user", "operator", "admin"};
  return kNames[static_cast<size_t>(level)];
}

AdminLevel LevelOf(const Access& access, const PeerUser& user) {
  if (user.uid == 0 || user.uid == access.owner) return AdminLevel::kAdmin;
  if (!access.is_service) return AdminLevel::kNone;
  if (Has(user, access.operator_group)) return AdminLevel::kOperator;
  return Has(user, access.group) ? AdminLevel::kUser : AdminLevel::kNone;
}

Status CheckMayConnect(const Access& access, const PeerUser& user) {
  if (LevelOf(access, user) != AdminLevel::kNone) return Status();
  const std::string who = "process " + std::to_string(user.pid) + " of user " +
                          std::to_string(user.uid) + " asked for a session; ";
  if (!access.is_service)
    return Status(ErrorId::kNotOwner,
                  who + "this memserver belongs to user " + std::to_string(access.owner));
  return Status(ErrorId::kNotOwner,
                who + "it is no member of group " + std::to_string(access.group));
}

}  // namespace tidepool::memserver
