#include "device/open_device.h"
#include "tests/fakes/real_clock.h"

#include <gtest/gtest.h>

namespace tidepool::device {
namespace open_device_test {

TEST(OpenDevice, OpensEveryNameThatItLists) {
  for (const std::string& name : DeviceNames()) {
    auto device = OpenDevice(name, {.clock = RealClock()});
    ASSERT_TRUE(device.ok()) << name;
    EXPECT_EQ((*device)->name(), name);
  }
}

TEST(OpenDevice, AnUnknownNameIsAUsageErrorThatListsTheKnownOnes) {
  auto device = OpenDevice("abacus", {});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().id(), ErrorId::kUsageError);
  EXPECT_NE(device.status().Format().find("abacus"), std::string::npos);
  EXPECT_NE(device.status().Format().find("host"), std::string::npos);
}

}  // namespace open_device_test
}  // namespace tidepool::device
