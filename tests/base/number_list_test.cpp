#include "base/text/number_list.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace number_list_test {

using Numbers = std::vector<uint32_t>;

TEST(NumberList, ReadsRangesInTheOrderGiven) {
  EXPECT_EQ(ParseNumberList("0").value(), Numbers{0});
  EXPECT_EQ(ParseNumberList("0-3,8").value(), (Numbers{0, 1, 2, 3, 8}));
  EXPECT_EQ(ParseNumberList("8,0-1").value(), (Numbers{8, 0, 1}));
  EXPECT_EQ(ParseNumberList("65535").value(), Numbers{65'535});
}

TEST(NumberList, RefusesWhatIsNoList) {
  for (const char* text : {"", ",", "1,", ",1", "a", "1-", "-1", "3-1", "1,1", "0-3,2", "65536",
                           "1--2", "1 ", "+1", "4294967296"}) {
    EXPECT_EQ(ParseNumberList(text).status().id(), ErrorId::kUsageError) << text;
  }
}

TEST(NumberList, PrintsWhatItReads) {
  EXPECT_EQ(FormatNumberList({}), "");
  EXPECT_EQ(FormatNumberList({5}), "5");
  for (const char* text : {"0-3,8", "8,0-1", "1,3,5-7"})
    EXPECT_EQ(FormatNumberList(ParseNumberList(text).value()), text);
}

}  // namespace number_list_test
}  // namespace tidepool
