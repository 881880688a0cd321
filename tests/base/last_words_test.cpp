#include "base/system/last_words.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>

namespace tidepool {
namespace last_words_test {

void ThrowOnAThread(void (*act)()) {
  const LastWords words("program");
  std::thread(act).join();
}

TEST(LastWordsDeathTest, AFailedAllocationSaysSoAndEndsWithItsCode) {
  EXPECT_EXIT(
      {
        const LastWords words("program");
        std::get_new_handler()();
      },
      ::testing::ExitedWithCode(21),
      "error\\[TP2001\\]: the system gave program no memory\n.*fix: +free memory");
}

TEST(LastWordsDeathTest, AProcessThatHoldsWhatWouldBeLostWaitsForMemoryAndSaysSoOnce) {
  EXPECT_EXIT(
      {
        const LastWords words("program");
        WaitForMemory();
        // Which operator new tries again after.
        for (int tries = 0; tries < 3; ++tries) std::get_new_handler()();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^the system gives no memory; it is waited for[^\n]*\n$");
}

TEST(LastWordsDeathTest, AnAllocatorThatThrowsByItselfEndsAlike) {
  EXPECT_EXIT(ThrowOnAThread([] { throw std::bad_alloc(); }), ::testing::ExitedWithCode(21),
              "gave program no memory");
}

TEST(LastWordsDeathTest, ADescriptorThatIsMissingIsNamed) {
  EXPECT_EXIT(DieOutOf("descriptor for an event"), ::testing::ExitedWithCode(21),
              "no descriptor for an event");
}

TEST(LastWordsDeathTest, AnyOtherExceptionStaysABugWithItsText) {
  EXPECT_EXIT(ThrowOnAThread([] { throw std::runtime_error("the text"); }),
              ::testing::KilledBySignal(SIGABRT), "nobody caught: the text");
}

}  // namespace last_words_test
}  // namespace tidepool
