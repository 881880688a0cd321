// Who may do what, by user and groups.
#include "memserver/control/access.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/unique_fd.h"

namespace tidepool::memserver {
namespace access_test {

constexpr Access kService{.is_service = true, .owner = 500, .group = 70, .operator_group = 71};
constexpr Access kPrivate{.owner = 500};

TEST(Access, PrivateModeIsForItsOwnerAndRoot) {
  EXPECT_EQ(LevelOf(kPrivate, {500, 1, {}}), AdminLevel::kAdmin);
  EXPECT_EQ(LevelOf(kPrivate, {0, 1, {}}), AdminLevel::kAdmin);
  EXPECT_EQ(LevelOf(kPrivate, {501, 1, {0, 70, 71}}), AdminLevel::kNone) << "groups mean nothing";
  EXPECT_EQ(CheckMayConnect(kPrivate, {501, 1, {70}}).id(), ErrorId::kNotOwner);
  EXPECT_EQ(kPrivate.directory_mode(), 0700U);
  EXPECT_EQ(kPrivate.socket_mode(), 0600U);
}

TEST(Access, ServiceModeGoesByGroups) {
  EXPECT_EQ(LevelOf(kService, {501, 1, {70}}), AdminLevel::kUser);
  EXPECT_EQ(LevelOf(kService, {501, 1, {5, 71}}), AdminLevel::kOperator);
  EXPECT_EQ(LevelOf(kService, {501, 1, {70, 71}}), AdminLevel::kOperator);
  EXPECT_EQ(LevelOf(kService, {501, 1, {0}}), AdminLevel::kNone) << "root's group is not root";
  EXPECT_EQ(LevelOf(kService, {500, 1, {}}), AdminLevel::kAdmin);
  EXPECT_TRUE(CheckMayConnect(kService, {501, 1, {70}}).ok());
  EXPECT_EQ(CheckMayConnect(kService, {501, 1, {}}).id(), ErrorId::kNotOwner);
}

TEST(Access, GroupsAreFoundByNameOrNumber) {
  const auto by_name = ServiceAccess("root", "daemon");
  ASSERT_TRUE(by_name.ok()) << by_name.status().Format();
  EXPECT_EQ(by_name.value().group, 0U);
  EXPECT_NE(by_name.value().operator_group, 0U);
  EXPECT_EQ(ServiceAccess("61700", "61701").value().group, 61700U);
  const Status missing = ServiceAccess("no-such-group-here", "0").status();
  EXPECT_EQ(missing.id(), ErrorId::kConfigBadValue);
  EXPECT_NE(missing.Format().find("groupadd"), std::string::npos);
}

TEST(Access, ThePeerIsWhoTheKernelSays) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd one(ends[0]), other(ends[1]);
  const auto user = UserAt(one.get());
  ASSERT_TRUE(user.ok());
  EXPECT_EQ(user.value().uid, geteuid());
  EXPECT_EQ(user.value().pid, getpid());
  const auto& groups = user.value().groups;
  EXPECT_NE(std::find(groups.begin(), groups.end(), getegid()), groups.end());
  EXPECT_FALSE(UserAt(-1).ok());
}

}  // namespace access_test
}  // namespace tidepool::memserver
