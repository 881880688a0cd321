#include "device/host/copy_team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/fakes/real_clock.h"

// Every copy is compared byte for byte, and the threads of a hand-over are held up between its
// steps, so that one of them comes late at each place.

namespace tidepool::device {
namespace copy_team_test {

constexpr uint64_t kGuard = 64;

// Up to some microseconds, each time another number of them.
void HoldUp() {
  thread_local SplitMix64 random(reinterpret_cast<uintptr_t>(&random));
  if (random.Below(64) == 0) return std::this_thread::yield();
  for (uint64_t i = random.Below(4) == 0 ? random.Below(400) : 0; i > 0; --i)
    __builtin_ia32_pause();
}

const std::vector<std::byte>& Source() {
  static const std::vector<std::byte> source = [] {
    SplitMix64 random(5);
    std::vector<std::byte> bytes(9 * kMiB);
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t word = random.Next();
      std::memcpy(bytes.data() + i, &word, sizeof word);
    }
    return bytes;
  }();
  return source;
}

// One thread that copies ranges of `sizes`, one after the other and again, from ever other places,
// each into memory that holds nothing of it. Stops at the first that is not whole, or that wrote
// beside its target.
class Caller {
 public:
  Caller(CopyTeam* team, std::vector<uint64_t> sizes, uint64_t seed)
      : team_(team), sizes_(std::move(sizes)), random_(seed) {}

  void Run(int copies, std::atomic<int>* wrong) {
    std::vector<std::byte> to(*std::max_element(sizes_.begin(), sizes_.end()) + 2 * kGuard);
    for (int copy = 0; copy < copies && *wrong == 0; ++copy) {
      const uint64_t bytes = sizes_[static_cast<size_t>(copy) % sizes_.size()];
      const std::byte* const from = Source().data() + random_.Below(Source().size() - bytes + 1);
      std::memset(to.data(), 0xA5, bytes + 2 * kGuard);
      team_->Copy(to.data() + kGuard, from, bytes, bytes);
      const bool whole = std::memcmp(to.data() + kGuard, from, bytes) == 0;
      if (!whole || !IsUntouched(to.data()) || !IsUntouched(to.data() + kGuard + bytes)) ++*wrong;
    }
  }

 private:
  static bool IsUntouched(const std::byte* guard) {
    return std::all_of(guard, guard + kGuard,
                       [](std::byte byte) { return byte == std::byte{0xA5}; });
  }

  CopyTeam* const team_;
  const std::vector<uint64_t> sizes_;
  SplitMix64 random_;
};

// `callers` of them at once, one on this thread; how many copies were wrong.
int WrongCopies(CopyTeam* team, const std::vector<uint64_t>& sizes, int callers, int copies) {
  std::atomic<int> wrong{0};
  const auto call = [&](int caller) {
    Caller(team, sizes, static_cast<uint64_t>(caller) + 1).Run(copies, &wrong);
  };
  std::vector<std::thread> others;
  for (int caller = 1; caller < callers; ++caller) others.emplace_back(call, caller);
  call(0);
  for (std::thread& other : others) other.join();
  return wrong;
}

TEST(CopyTeam, CopiesTheSameBytesAsOneThread) {
  for (const uint32_t helpers : {0u, 1u, 3u}) {
    CopyTeam team(RealClock(), helpers, 20'000);
    EXPECT_EQ(team.helpers(), helpers);
    EXPECT_EQ(WrongCopies(&team, {0, 1, kMiB - 1, kMiB, 4 * kMiB + 1, 9 * kMiB}, 1, 6), 0)
        << helpers;
  }
}

// The helpers go to one of the callers at a time; every copy is complete when Copy returns, task
// after task without a pause, by helpers that spin and by helpers that sleep in between.
TEST(CopyTeam, SeveralCallersDoNotMixTheirCopies) {
  for (const int64_t spin_ns : {0, 20'000}) {
    CopyTeam team(RealClock(), 2, spin_ns);
    EXPECT_EQ(WrongCopies(&team, {2 * kMiB}, 3, 15), 0);
  }
}

// A helper that comes late with the ticket of a short copy must not take it for one of the long
// copy behind it.
TEST(CopyTeam, EachOfManyCopiesThatGrowAndShrinkIsWhole) {
  constexpr uint64_t kPiece = 4 * kKiB;
  const std::vector<uint64_t> sizes{2 * kPiece,     16 * kPiece,     3 * kPiece + 1,
                                    2 * kPiece + 7, 33 * kPiece - 5, 5 * kPiece};
  for (const uint32_t helpers : {1u, 2u, 3u}) {
    for (const int callers : {1, 2}) {
      CopyTeam team(RealClock(), helpers, 1'000'000, {.piece_bytes = kPiece, .pause = HoldUp});
      ASSERT_EQ(WrongCopies(&team, sizes, callers, 150), 0)
          << helpers << " helpers, " << callers << " callers";
    }
  }
}

TEST(CopyTeam, ATailOfOneMebibyteBetweenPiecesOfEightIsWhole) {
  for (const uint32_t helpers : {1u, 2u}) {
    CopyTeam team(RealClock(), helpers, 1'000'000, {.pause = HoldUp});
    EXPECT_EQ(WrongCopies(&team, {8 * kMiB, kMiB}, 2, 16), 0) << helpers;
  }
}

TEST(CopyTeam, ARangeOfMorePiecesThanTheTicketCountsHasLargerOnes) {
  constexpr uint64_t kPiece = 4 * kKiB;
  CopyTeam team(RealClock(), 2, 1'000'000,
                {.piece_bytes = kPiece, .pieces_max = 5, .pause = HoldUp});
  EXPECT_EQ(WrongCopies(&team, {5 * kPiece, 5 * kPiece + 1, 64 * kPiece + 3, 2 * kPiece}, 2, 100),
            0);
}

}  // namespace copy_team_test
}  // namespace tidepool::device
