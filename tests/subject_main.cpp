// The main function of a program that holds the tests of a folder: `--files=a_test.cpp,b_test.cpp`
// runs those of these files, by the usual flags of GoogleTest. Files are compiled together, several
// at once, which takes less than half of the time (docs/decisions/017).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/not_run.h"

namespace {

constexpr std::string_view kFlag = "--files=";

std::vector<std::string> FilesIn(std::string_view argument) {
  std::vector<std::string> files;
  std::istringstream words{std::string(argument.substr(kFlag.size()))};
  for (std::string word; std::getline(words, word, ',');) files.push_back(word);
  return files;
}

bool IsIn(const testing::TestInfo& test, const std::vector<std::string>& files) {
  const std::string_view path = test.file();
  return std::find(files.begin(), files.end(), path.substr(path.rfind('/') + 1)) != files.end();
}

// ":Suite.*:Suite.Test": all tests of other files. False when no test is of these.
bool OthersThan(const std::vector<std::string>& files, std::string* others) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  bool any = false;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    std::string foreign;
    int of_these = 0;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (IsIn(test, files)) {
        ++of_these;
      } else {
        foreign += std::string(":") + suite.name() + "." + test.name();
      }
    }
    *others += of_these == 0 ? std::string(":") + suite.name() + ".*" : foreign;
    any = any || of_these > 0;
  }
  return any;
}

bool SomethingWasNotRun() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestResult& result = *suite.GetTestInfo(j)->result();
      for (int k = 0; k < result.test_property_count(); ++k) {
        if (std::string_view(result.GetTestProperty(k).key()) == tidepool::testing::kNotRun)
          return true;
      }
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (!std::string_view(argv[i]).starts_with(kFlag)) {
      std::fprintf(stderr, "%s: unknown argument \"%s\"\n", argv[0], argv[i]);
      return 2;
    }
    std::string others;
    if (!OthersThan(FilesIn(argv[i]), &others)) {
      std::fprintf(stderr, "%s: no test is of %s\n", argv[0], argv[i] + kFlag.size());
      return 2;
    }
    std::string filter = GTEST_FLAG_GET(filter);
    if (!others.empty())
      filter += (filter.find('-') == std::string::npos ? "-" : ":") + others.substr(1);
    GTEST_FLAG_SET(filter, filter);
  }
  const int failed = RUN_ALL_TESTS();
  return failed == 0 && SomethingWasNotRun() ? tidepool::testing::kNotRunCode : failed;
}
