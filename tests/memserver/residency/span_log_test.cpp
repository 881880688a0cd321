// The log of what memserver did: what it keeps, and readers beside its writer.
#include "memserver/residency/spans/span_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/fakes/fake_clock.h"

namespace tidepool::memserver {
namespace span_log_test {

// Every number of a span follows from one, so that a mixture of two is seen.
Span Numbered(uint32_t number) {
  return {.kind = static_cast<SpanKind>(number % kSpanKinds),
          .by = number,
          .chunk = number + 1,
          .piece = number + 2,
          .begin_ns = int64_t{number} + 3,
          .end_ns = int64_t{number} + 4};
}

bool IsNumbered(const Span& span) {
  const Span wanted = Numbered(span.by);
  return span.kind == wanted.kind && span.chunk == wanted.chunk && span.piece == wanted.piece &&
         span.begin_ns == wanted.begin_ns && span.end_ns == wanted.end_ns;
}

TEST(SpanLogs, GiveBackWhatWasAddedSinceATime) {
  FakeClock clock;
  SpanLog log(&clock);
  EXPECT_EQ(log.NowNs(), clock.NowNs());
  EXPECT_TRUE(log.Since(0).empty());
  for (uint32_t i = 0; i < 10; ++i) log.Add(Numbered(i));
  const std::vector<Span> all = log.Since(0), late = log.Since(11);
  ASSERT_EQ(all.size(), 10u);
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(all[i].by, i);
    EXPECT_TRUE(IsNumbered(all[i])) << i;
  }
  ASSERT_EQ(late.size(), 3u) << "those that end at 11, 12 and 13";
  EXPECT_EQ(late[0].by, 7u);
}

TEST(SpanLogs, KeepTheLastOnes) {
  FakeClock clock;
  SpanLog log(&clock);
  for (uint32_t i = 0; i < SpanLog::kSpans + 100; ++i) log.Add(Numbered(i));
  const std::vector<Span> all = log.Since(0);
  ASSERT_EQ(all.size(), SpanLog::kSpans);
  EXPECT_EQ(all.front().by, 100u);
  EXPECT_EQ(all.back().by, SpanLog::kSpans + 99);
}

TEST(SpanLogs, NeverMixTwoSpans) {
  FakeClock clock;
  SpanLog log(&clock);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !stop.load(); ++i) log.Add(Numbered(i));
  });
  size_t seen = 0;
  while (seen < 4 * SpanLog::kSpans) {
    const std::vector<Span> spans = log.Since(0);
    seen += spans.size();
    for (size_t i = 0; i < spans.size(); ++i) {
      ASSERT_TRUE(IsNumbered(spans[i]));
      if (i > 0) {
        ASSERT_EQ(spans[i].by, spans[i - 1].by + 1) << "there is no gap";
      }
    }
  }
  stop = true;
  writer.join();
}

}  // namespace span_log_test
}  // namespace tidepool::memserver
