#include "shm/socket_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "shm/fd_socket.h"
#include "tests/fakes/real_clock.h"

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
  EXPECT_EQ(DefaultSocketDir(),
            system_directory ? "/run/tidepool" : "/tmp/tidepool-" + std::to_string(getuid()));
}

// The directory of a service belongs to another user, and its group may enter it. Root may write
// everywhere, so the test is somebody else.
TEST(SocketPath, AClientFindsTheServiceWhoseDirectoryItMayEnterAndNotWriteInto) {
  std::string pattern = (std::filesystem::temp_directory_path() / "tidepool-dirs-XXXXXX").string();
  const std::string base = mkdtemp(pattern.data()), service = base + "/service",
                    runtime = base + "/runtime", own = runtime + "/tidepool";
  std::filesystem::create_directories(service);
  std::filesystem::create_directories(own);
  ASSERT_EQ(chmod(base.c_str(), 0755), 0);
  ASSERT_EQ(chmod(service.c_str(), 0555), 0);
  unsetenv("TIDEPOOL_SOCKET_DIR");
  setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
  const bool is_root = geteuid() == 0;
  constexpr uid_t kNobody = 65534;
  if (is_root) {
    ASSERT_EQ(chown(own.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  EXPECT_EQ(DefaultSocketDir(service), own) << "where a memserver of the user's own would serve";
  EXPECT_EQ(DefaultClientDir(service), service);
  EXPECT_EQ(DefaultClientDir(base + "/none"), own) << "no such service";
  std::ofstream(own + "/data.sock") << "";
  EXPECT_EQ(DefaultClientDir(service), own)
      << "a memserver of the user's own goes before the service";
  setenv("TIDEPOOL_SOCKET_DIR", "/x/y", 1);
  EXPECT_EQ(DefaultClientDir(service), "/x/y");
  unsetenv("TIDEPOOL_SOCKET_DIR");
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
    ASSERT_EQ(chown(own.c_str(), 4711, 4711), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
    EXPECT_EQ(DefaultClientDir(service), service)
        << "a directory of another user is not looked into";
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_EQ(DefaultClientDir(service), service) << "root may write there";
  }
  if (is_root) {
    ASSERT_EQ(chmod(service.c_str(), 0700), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
    EXPECT_EQ(DefaultClientDir(service), service) << "not open to this user";
    const auto refused = ConnectSocket(RealClock(), DataSocketPath(service), 0);
    EXPECT_NE(refused.status().Format().find("usermod"), std::string::npos)
        << refused.status().Format();
    ASSERT_EQ(seteuid(0), 0);
  }
  unsetenv("XDG_RUNTIME_DIR");
  ASSERT_EQ(chmod(service.c_str(), 0755), 0);
  std::filesystem::remove_all(base);
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
