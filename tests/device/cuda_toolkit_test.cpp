#include "device/cuda_toolkit.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace tidepool::device {
namespace cuda_toolkit_test {

TEST(CudaToolkit, IsLinkedExactlyWhereTheBuildFoundIt) {
  const CudaToolkit toolkit = ReadCudaToolkit();
  EXPECT_EQ(toolkit.linked, TIDEPOOL_EXPECT_CUDA != 0);
  EXPECT_EQ(toolkit.runtime_version >= 12000, toolkit.linked);
}

TEST(CudaToolkit, WithoutADriverThereAreNoDevicesAndAReason) {
  const CudaToolkit toolkit = ReadCudaToolkit();
  const bool driver = std::filesystem::exists("/proc/driver/nvidia/version");
  if (!driver) {
    EXPECT_EQ(toolkit.devices, 0);
  }
  EXPECT_EQ(toolkit.devices == 0, !toolkit.why_none.empty());
}

}  // namespace cuda_toolkit_test
}  // namespace tidepool::device
