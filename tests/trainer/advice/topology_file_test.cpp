// --topology FILE: what it may say, and what is said of a file that says something else.
#include "trainer/advice/topology_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace tidepool::trainer {
namespace topology_file_test {

class TopologyFile : public ::testing::Test {
 protected:
  Result<PipelineMachine> Read(const std::string& text) const {
    std::ofstream(path_) << text;
    return ReadTopology(path_);
  }
  void ExpectBad(const std::string& text, const std::string& why) const {
    const Status status = Read(text).status();
    EXPECT_EQ(status.id(), ErrorId::kConfigBadValue) << text;
    EXPECT_NE(status.Format().find(why), std::string::npos) << status.Format();
  }
  // A file with this list of complexes and all that else is needed.
  static std::string With(const std::string& complexes) {
    return R"({"origin": "x", "gpu_memory": "24GiB", "tflops": 35, "root_complexes": )" +
           complexes + "}";
  }

  ~TopologyFile() override { std::remove(path_.c_str()); }

  const std::string path_ = ::testing::TempDir() + "topology." + std::to_string(getpid()) + ".json";
};

TEST_F(TopologyFile, DescribesThePapersTopologies) {
  const struct {
    const char *complexes, *name;
    uint32_t gpus;
  } kCases[] = {
      {R"([{"gpus": 4, "gb_per_s": 13}])", "4", 4},
      {R"([{"gpus": 2, "gb_per_s": 13}, {"gpus": 2, "gb_per_s": 13}])", "2+2", 4},
      {R"([{"gpus": 1, "gb_per_s": 13}, {"gpus": 3, "gb_per_s": 13}])", "1+3", 4},
      {R"([{"gpus": 4, "gb_per_s": 13}, {"gpus": 4, "gb_per_s": 26.5}])", "4+4", 8},
  };
  for (const auto& each : kCases) {
    auto machine = Read(With(each.complexes));
    ASSERT_TRUE(machine.ok()) << machine.status().Format();
    EXPECT_EQ(machine->topology.Name(), each.name);
    EXPECT_EQ(machine->topology.gpus(), each.gpus);
    EXPECT_EQ(machine->topology.RateAlone(), 13);
    EXPECT_EQ(machine->gpu_bytes, uint64_t{24} << 30);
    EXPECT_EQ(machine->tflops, 35);
  }

  const GpuTopology uneven = Read(With(kCases[3].complexes)).value().topology;
  EXPECT_EQ(uneven.ComplexOf(3), 0U);
  EXPECT_EQ(uneven.ComplexOf(4), 1U);
  EXPECT_EQ(uneven.RateShared(), 13.0 / 4);
}

TEST_F(TopologyFile, ThatSaysSomethingElseIsRefusedWithTheReason) {
  EXPECT_EQ(ReadTopology(path_ + ".none").status().id(), ErrorId::kConfigUnreadable);
  ExpectBad("", "not a JSON object");
  ExpectBad("[]", "not a JSON object");
  ExpectBad("{}", "no array \"root_complexes\"");
  ExpectBad(With("[]"), "no array \"root_complexes\"");
  ExpectBad(With("[3]"), "no object");
  ExpectBad(With(R"([{"gpus": 0, "gb_per_s": 13}])"), "a whole number from 1 to 16");
  ExpectBad(With(R"([{"gpus": 1.5, "gb_per_s": 13}])"), "a whole number from 1 to 16");
  ExpectBad(With(R"([{"gpus": 17, "gb_per_s": 13}])"), "a whole number from 1 to 16");
  ExpectBad(With(R"([{"gpus": 2}])"), "\"gb_per_s\" of a root complex must be");
  ExpectBad(With(R"([{"gpus": 2, "gb_per_s": -1}])"), "\"gb_per_s\" of a root complex must be");
  ExpectBad(With(R"([{"gpus": 9, "gb_per_s": 1}, {"gpus": 9, "gb_per_s": 1}])"),
            "18 GPUs are more than the 16");

  const std::string complexes = R"("root_complexes": [{"gpus": 1, "gb_per_s": 1}])";
  ExpectBad(R"({"origin": "x", "gpu_memory": "1GiB", )" + complexes + "}", "\"tflops\" must be");
  ExpectBad(R"({"origin": "x", "tflops": 1, "gpu_memory": 24, )" + complexes + "}",
            "\"gpu_memory\" must be a size");
  ExpectBad(R"({"tflops": 1, "gpu_memory": "1GiB", )" + complexes + "}", "\"origin\" does not say");
}

TEST(MachineOfThePaper, HasFourGpusARootComplex) {
  EXPECT_EQ(MachineOfThePaper(1).topology.Name(), "1");
  EXPECT_EQ(MachineOfThePaper(8).topology.Name(), "4+4");
  EXPECT_EQ(MachineOfThePaper(6).topology.Name(), "4+2");
  EXPECT_NE(MachineOfThePaper(4).origin.find("nothing is known of yours"), std::string::npos);
}

}  // namespace topology_file_test
}  // namespace tidepool::trainer
