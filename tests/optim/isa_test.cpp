#include "optim/kernels/isa.h"

#include <gtest/gtest.h>

#include "optim/kernels/kernels.h"

namespace tidepool::optim {
namespace isa_test {

TEST(Isa, NamesAreReadBack) {
  for (IsaLevel level : {IsaLevel::kScalarReference, IsaLevel::kV2, IsaLevel::kV3, IsaLevel::kV4}) {
    const Result<IsaLevel> read = IsaFromName(NameOf(level));
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read.value(), level);
  }
}

TEST(Isa, AutoIsTheBestLevel) {
  EXPECT_EQ(IsaFromName("auto").value(), BestIsa());
}

TEST(Isa, UnknownNameIsRefusedWithTheChoices) {
  const Result<IsaLevel> read = IsaFromName("avx9");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().id(), ErrorId::kConfigBadValue);
  EXPECT_NE(read.status().Format().find("v3"), std::string::npos);
}

TEST(Isa, EveryLevelSelectsItselfOrFallsBackToTheBest) {
  for (IsaLevel level : {IsaLevel::kScalarReference, IsaLevel::kV2, IsaLevel::kV3, IsaLevel::kV4}) {
    EXPECT_EQ(SelectKernels(level).isa, std::min(level, BestIsa())) << NameOf(level);
  }
}

}  // namespace isa_test
}  // namespace tidepool::optim
