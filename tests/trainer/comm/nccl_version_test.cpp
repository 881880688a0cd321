#include "trainer/comm/nccl/nccl_version.h"

#include <gtest/gtest.h>

#include "trainer/comm/nccl/nccl_table.h"

namespace tidepool::trainer {
namespace nccl_version_test {

// The library is the machine's: it may be missing where the header is not, but not the other way
// round.
TEST(NcclVersion, IsThatOfTheLibraryOrSaysWhyThereIsNone) {
  const std::string version = NcclVersion();
  const auto nccl = LoadNccl();
  EXPECT_TRUE(TIDEPOOL_EXPECT_NCCL != 0 || !nccl.ok());
  if (!nccl.ok()) {
    EXPECT_EQ(version, "none (" + nccl.status().what() + ")");
    return;
  }
  int loaded = 0;
  ASSERT_EQ(nccl.value()->get_version(&loaded), NcclTable::kSuccess);
  EXPECT_GT(loaded, 20000);
  EXPECT_EQ(version.find(std::to_string(loaded / 10000) + "."), 0u) << version;
  EXPECT_STREQ(nccl.value()->get_error_string(NcclTable::kSuccess), "no error");
}

}  // namespace nccl_version_test
}  // namespace tidepool::trainer
