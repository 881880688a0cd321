// --device: what it means for each rank of a node, and what is said when there is no such GPU.
#include "trainer/advice/device_place.h"

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace device_place_test {

std::vector<device::Gpu> Gpus(int count) {
  std::vector<device::Gpu> gpus;
  for (int i = 0; i < count; ++i) {
    gpus.push_back({.ordinal = i,
                    .uuid = {},
                    .name = "NVIDIA Test",
                    .pci_address = "0000:17:00.0",
                    .wait_value64 = true});
  }
  return gpus;
}

RankPlace Local(uint32_t rank, uint32_t world) {
  RankPlace place;
  place.rank = place.local_rank = rank;
  place.world = place.local_world = world;
  return place;
}

Result<DevicePlace> Choose(const std::string& text, const RankPlace& place,
                           const Result<std::vector<device::Gpu>>& gpus) {
  return ChooseDevice(ParseDeviceWish(text).value(), place, gpus);
}

TEST(DevicePlace, WordsAreReadAndOthersRefused) {
  EXPECT_EQ(ParseDeviceWish("cpu").value().kind, DeviceWish::Kind::kCpu);
  EXPECT_EQ(ParseDeviceWish("auto").value().kind, DeviceWish::Kind::kAuto);
  EXPECT_FALSE(ParseDeviceWish("cuda").value().ordinal.has_value());
  EXPECT_EQ(ParseDeviceWish("cuda:12").value().ordinal, 12U);
  for (const char* word : {"", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda: 1", "CUDA"}) {
    EXPECT_EQ(ParseDeviceWish(word).status().id(), ErrorId::kUsageError) << word;
  }
}

TEST(DevicePlace, LocalRanksTakeTheGpusInTurn) {
  const auto first = Choose("cuda", Local(0, 2), Gpus(2)),
             second = Choose("cuda", Local(1, 2), Gpus(2));
  EXPECT_EQ(first.value().gpu->ordinal, 0);
  EXPECT_EQ(second.value().gpu->ordinal, 1);
  EXPECT_EQ(second.value().sharers, 1U);
  EXPECT_NE(Describe(second.value()).find("cuda:1, NVIDIA Test (GPU-"), std::string::npos)
      << Describe(second.value());
  EXPECT_EQ(Describe(second.value()).find("shared"), std::string::npos);
}

TEST(DevicePlace, ASharedGpuIsSaidToBe) {
  const DevicePlace third = Choose("cuda", Local(2, 3), Gpus(2)).value();
  EXPECT_EQ(third.gpu->ordinal, 0);
  EXPECT_EQ(third.sharers, 2U);
  EXPECT_EQ(third.gpus, 2U);
  EXPECT_NE(Describe(third).find("shared by 2 ranks of this node"), std::string::npos)
      << Describe(third);
  EXPECT_EQ(Choose("cuda", Local(1, 3), Gpus(2)).value().sharers, 1U);
  EXPECT_EQ(Choose("cuda:1", Local(0, 3), Gpus(2)).value().sharers, 3U);
  EXPECT_EQ(Choose("cuda:1", Local(0, 3), Gpus(2)).value().gpus, 1U);
  EXPECT_EQ(Choose("cuda", Local(0, 3), Gpus(8)).value().gpus, 3U) << "those that have a rank";
  EXPECT_EQ(Choose("cpu", Local(0, 3), Gpus(8)).value().gpus, 0U);
}

TEST(DevicePlace, AGpuThatIsNotThereIsAnErrorOrTheHost) {
  const Status none(ErrorId::kCudaUnavailable, "no libcuda.so.1");
  EXPECT_EQ(Choose("cuda", Local(0, 1), none).status().id(), ErrorId::kCudaUnavailable);
  const DevicePlace host = Choose("auto", Local(0, 1), none).value();
  EXPECT_FALSE(host.gpu.has_value());
  EXPECT_EQ(Describe(host), "cpu; --device auto found no GPU that can be used: no libcuda.so.1");
  EXPECT_EQ(Choose("cuda:2", Local(0, 1), Gpus(2)).status().what(),
            "there is no GPU 2: the driver shows 2");
  EXPECT_FALSE(Choose("cpu", Local(0, 1), Gpus(2)).value().gpu.has_value());
  EXPECT_EQ(Choose("auto", Local(0, 1), Gpus(1)).value().gpu->ordinal, 0);
}

TEST(DevicePlace, AGpuWithoutFlagsCannotBeUsed) {
  std::vector<device::Gpu> old = Gpus(1);
  old[0].wait_value64 = false;
  const Status refused = Choose("cuda", Local(0, 1), old).status();
  EXPECT_EQ(refused.id(), ErrorId::kCudaUnavailable);
  EXPECT_NE(refused.what().find("cannot wait for 64-bit flags"), std::string::npos);
  EXPECT_FALSE(Choose("auto", Local(0, 1), old).value().gpu.has_value());
}

}  // namespace device_place_test
}  // namespace tidepool::trainer
