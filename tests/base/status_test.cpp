#include "base/status.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "base/text/error_text.h"

namespace tidepool {
namespace status_test {

Status Fails() {
  return Status(ErrorId::kPoolFull, "needs 3 GiB, 1 GiB is free");
}

Status PassesOn(bool* went_on) {
  TP_RETURN_IF_ERROR(Fails());
  *went_on = true;
  return {};
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Status(ErrorId::kUsageError, "odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  TP_ASSIGN_OR_RETURN(const int half, Half(value));
  TP_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Status, DefaultIsOkAndCostsNothingToShow) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.id(), ErrorId::kNone);
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.exit_code(), kExitOk);
  EXPECT_EQ(status.Format(), "ok");
  EXPECT_EQ(status.Line(), "ok");
  EXPECT_EQ(sizeof(Status), sizeof(std::shared_ptr<int>));
}

TEST(Status, CarriesClassAndExitCodeOfItsCatalogueEntry) {
  const Status status = Fails();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.id(), ErrorId::kPoolFull);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_EQ(status.exit_code(), kExitRefused);
  EXPECT_EQ(status.what(), "needs 3 GiB, 1 GiB is free");
}

TEST(Status, FormatSaysWhatWhereWhyAndTheStandingAdvice) {
  const Status status = Fails().Where("job 7").Why("two jobs hold the rest");
  EXPECT_EQ(status.Format(), std::string("error[TP2101]: needs 3 GiB, 1 GiB is free\n   where: job "
                                         "7\n   why:   two jobs hold the rest\n   fix:   ") +
                                 ErrorEntryOf(ErrorId::kPoolFull).advice);
}

TEST(Status, AFixOfItsOwnReplacesTheAdvice) {
  EXPECT_EQ(Fails().Fix("--pool 4GiB").Format(),
            "error[TP2101]: needs 3 GiB, 1 GiB is free\n   fix:   --pool 4GiB");
}

TEST(Status, LineFitsOneLogLine) {
  EXPECT_EQ(Fails().Line(), "TP2101 PoolFull: needs 3 GiB, 1 GiB is free");
}

TEST(Status, CopiesStayEqualAfterTheOriginalIsGone) {
  Status copy;
  {
    const Status original = Fails();
    copy = original;
  }
  EXPECT_EQ(copy.id(), ErrorId::kPoolFull);
}

TEST(Status, ReturnIfErrorEndsTheFunction) {
  bool went_on = false;
  EXPECT_EQ(PassesOn(&went_on).id(), ErrorId::kPoolFull);
  EXPECT_FALSE(went_on);
}

TEST(Result, HoldsAValueOrAStatus) {
  EXPECT_EQ(Half(4).value(), 2);
  const Result<int> bad = Half(3);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().id(), ErrorId::kUsageError);
}

TEST(Result, AssignOrReturnTakesTheFirstError) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().id(), ErrorId::kUsageError);
}

TEST(Result, CarriesTypesThatOnlyMove) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

size_t Widest(const std::string& text) {
  size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(ErrorText, FoldsEveryErrorOfTheCatalogueTo100Columns) {
  std::string numbers = "8";
  while (numbers.size() < 300) numbers += " bytes of 12 GiB";

  for (const ErrorEntry& entry : ErrorCatalog()) {
    const Status short_one(entry.id, entry.meaning);
    EXPECT_LE(Widest(ErrorText(short_one)), kErrorColumns) << entry.name;
    const Status status = Status(entry.id, numbers).Where(numbers).Why(entry.meaning).Fix(numbers);
    EXPECT_GT(Widest(status.Format()), kErrorColumns) << entry.name;
    EXPECT_LE(Widest(ErrorText(status)), kErrorColumns) << entry.name;
  }
}

TEST(ErrorText, GoesOnBelowItsBeginning) {
  EXPECT_EQ(FoldText("   fix:   one two three four", 20),
            "   fix:   one two\n          three four");
  EXPECT_EQ(FoldText("short\n   as it is\n", 20), "short\n   as it is\n");
  EXPECT_EQ(FoldText("", 20), "");
}

TEST(ErrorText, KeepsLongWordsWholeAndCountsCharacters) {
  EXPECT_EQ(FoldText("see /a/path/of/more/than/20/columns there", 20),
            "see\n          /a/path/of/more/than/20/columns\n          there");
  EXPECT_EQ(FoldText("ü ü ü ü ü", 9), "ü ü ü ü ü");
}

}  // namespace status_test
}  // namespace tidepool
