#include "trainer/launch/done_marks.h"

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace done_marks_test {

TEST(DoneMarks, EachRankHasItsOwn) {
  const auto marks = DoneMarks::Make(3);
  ASSERT_TRUE(marks.ok()) << marks.status().Format();
  SetDoneMark(marks.value().path(), 1);
  EXPECT_FALSE(marks.value().IsSet(0));
  EXPECT_TRUE(marks.value().IsSet(1));
  EXPECT_FALSE(marks.value().IsSet(2));
}

TEST(DoneMarks, ALauncherThatHasEndedIsNotMissed) {
  std::string path;
  {
    const auto marks = DoneMarks::Make(1);
    path = marks.value().path();
  }
  SetDoneMark(path, 0);
  EXPECT_FALSE(DoneMarks::Make(1).value().IsSet(0));
}

}  // namespace done_marks_test
}  // namespace tidepool::trainer
