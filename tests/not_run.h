// NotRun: a test says that it cannot run here (no FUSE, no cgroup), and returns. Its subject is
// then listed by ctest as not run, unless another test of it fails. Call it in the body of a test,
// on its thread, before anything was expected.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace tidepool::testing {

inline constexpr const char* kNotRun = "not_run";  // the property that the main function looks for
inline constexpr int kNotRunCode = 77;             // as SKIP_RETURN_CODE in cmake/Targets.cmake

inline void NotRun(const std::string& missing) {
  ::testing::Test::RecordProperty(kNotRun, missing);
  std::printf("NOT RUN here: %s\n", missing.c_str());
}

}  // namespace tidepool::testing
