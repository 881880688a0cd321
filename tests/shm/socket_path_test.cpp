#include "shm/socket_path.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tidepool::shm {
namespace socket_path_test {

TEST(SocketPath, TheEnvironmentNamesTheDirectory) {
  setenv("TIDEPOOL_SOCKET_DIR", "/x/y", 1);
  EXPECT_EQ(DefaultSocketDir(), "/x/y");
  unsetenv("TIDEPOOL_SOCKET_DIR");
}

TEST(SocketPath, WithoutAnythingElseTheRuntimeDirectoryOfTheUserIsTaken) {
  unsetenv("TIDEPOOL_SOCKET_DIR");
  const bool system_directory = access("/run/tidepool", W_OK | X_OK) == 0;
  setenv("XDG_RUNTIME_DIR", "/run/user/77", 1);
  EXPECT_EQ(DefaultSocketDir(), system_directory ? "/run/tidepool" : "/run/user/77/tidepool");
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultSocketDir(), system_directory ? "/run/tidepool" : "/tmp/tidepool-" + std::to_string(getuid()));
}

TEST(SocketPath, ADirectoryTooLongForASocketIsRefusedWithTheLimit) {
  EXPECT_TRUE(CheckSocketDir("/tmp/x").ok());
  const Status status = CheckSocketDir("/" + std::string(100, 'd'));
  EXPECT_EQ(status.id(), ErrorId::kSocketFailed);
  EXPECT_NE(status.Format().find("107"), std::string::npos) << status.Format();
  EXPECT_EQ(DataSocketPath("/d"), "/d/data.sock");
  EXPECT_EQ(AdminSocketPath("/d"), "/d/admin.sock");
  EXPECT_EQ(KeeperSocketPath("/d"), "/d/keeper.sock");
  EXPECT_EQ(LockFilePath("/d"), "/d/memserver.lock");
}

}  // namespace socket_path_test
}  // namespace tidepool::shm
