// A memserver that nobody uses measures its machine, in a process that is gone afterwards.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/clock.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace measured_rates_test {

// Ten quiet seconds and some of measuring, for which other programs may leave little CPU.
constexpr int64_t kLimit = 240 * kNsPerSecond;

TEST(MeasuredRates, AreThereAfterSomeQuietSecondsAndStay) {
  const std::vector<std::string> on{"--measure-rates", "on", "--gpu", "none"};
  MemserverProcess server(on);
  const std::string file = server.socket_dir() + "/rates.json";
  EXPECT_FALSE(std::filesystem::exists(file)) << "not at once";
  ASSERT_TRUE(server.process().WaitForOutput("the machine's rates are known", kLimit))
      << server.process().Output();

  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const char* part :
       {"\"origin\":\"measured by memserver on ", "\"machine\":\"", "\"device\":\"cpu\"",
        "\"ranks\":1,", "\"host_update_g_elements_per_s\":"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
  EXPECT_TRUE(ProcessesNaming(file).empty()) << "the process that measured has ended";

  std::filesystem::remove(file);
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
}

}  // namespace measured_rates_test
}  // namespace tidepool::testing
