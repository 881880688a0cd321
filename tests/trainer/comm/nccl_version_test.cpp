#include "trainer/comm/nccl_version.h"

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace nccl_version_test {

TEST(NcclVersion, IsThatOfTheLibraryWhereTheBuildFoundOne) {
  const std::string version = NcclVersion();
  EXPECT_EQ(version == "none", TIDEPOOL_EXPECT_NCCL == 0) << version;
  EXPECT_EQ(version.find("built for"), std::string::npos) << "headers and library differ: " << version;
}

}  // namespace nccl_version_test
}  // namespace tidepool::trainer
