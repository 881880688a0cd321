#include "bench/harness/row.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tidepool::bench {
namespace row_test {

TEST(BenchRow, EveryKeyIsAlwaysThere) {
  EXPECT_EQ(
      ToJson({.bench = "b",
              .row = "r",
              .value = 2.5,
              .unit = "GB/s",
              .against = "memcpy",
              .ratio = 0.95,
              .target = 0.9}),
      R"({"bench":"b","row":"r","value":2.5,"unit":"GB/s","against":"memcpy","ratio":0.95,"target":0.9,"holds":true})");
  EXPECT_EQ(
      ToJson({.bench = "b",
              .row = "r",
              .value = 1,
              .unit = "us",
              .against = "",
              .ratio = {},
              .target = {}}),
      R"({"bench":"b","row":"r","value":1,"unit":"us","against":null,"ratio":null,"target":null,"holds":null})");
}

TEST(BenchRow, ATargetThatIsMissedEndsTheProgramWithOne) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("tidepool-row-test-" + std::to_string(getpid()));
  const char* argv[] = {"bench", "--json", path.c_str(), "--pool", "1GiB"};
  RowPrinter printer(5, argv, "help");
  EXPECT_EQ(printer.arguments(), (std::vector<std::string>{"--pool", "1GiB"}));
  printer.Add({.bench = "b",
               .row = "good",
               .value = 1,
               .unit = "x",
               .against = "y",
               .ratio = 1.0,
               .target = 0.9});
  EXPECT_EQ(printer.Finish(), 0);
  printer.Add({.bench = "b",
               .row = "bad",
               .value = 1,
               .unit = "x",
               .against = "y",
               .ratio = 0.8,
               .target = 0.9});
  EXPECT_EQ(printer.Finish(), kExitTargetMissed);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(text.find("[\n{\"bench\":\"b\",\"row\":\"good\""), 0u);
  EXPECT_NE(text.find("\"holds\":false}\n]\n"), std::string::npos);
  std::filesystem::remove(path);
}

TEST(BenchRow, PercentilesAreMeasuredValues) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(Median(values), 3);
  EXPECT_EQ(Percentile(values, 0), 1);
  EXPECT_EQ(Percentile(values, 1), 5);
  EXPECT_EQ(Percentile({7}, 0.999), 7);
}

}  // namespace row_test
}  // namespace tidepool::bench
