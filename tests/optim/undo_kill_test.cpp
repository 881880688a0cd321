#include <gtest/gtest.h>

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/point.h"
#include "base/units.h"
#include "optim/undo_tile.h"
#include "optim/update_rule.h"
#include "tests/optim/random_arrays.h"

// Real processes: a child updates shared memory and is killed with -9 while it works; its parent
// recovers.

namespace tidepool::optim {
namespace undo_kill_test {

constexpr uint64_t kCount = 300'000;
constexpr uint64_t kRounds = 12;

struct KeptMemory {
  float master[kCount], momentum[kCount], variance[kCount];
  uint16_t gradient[kCount], param16[kCount];
  UndoArea areas[2];
  ProgressWord progress;
  GroupRun run;

  Piece PieceOf(uint64_t version) {
    run = {0, kCount, MakeFactors({}, {1e-3, version, 1.0F}, {1, 0.1})};
    const UpdateSpan planes{master,      momentum, variance,    gradient,
                            DType::kF16, param16,  DType::kF16, kCount};
    return {1, version, planes, {&run, 1}, &progress};
  }
};

// Waits until the child has come to `element` of `version`, then kills it.
void KillAtTile(pid_t child, const KeptMemory& memory, uint64_t version, uint64_t element) {
  for (Progress at = memory.progress.Load(); at.version < version || at.begin < element;
       at = memory.progress.Load()) {
    if (at.version == version && at.state == Progress::State::kFinished) break;
    sched_yield();
  }
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

TEST(UndoKill, AKilledProcessLosesNothing) {
  void* mapped =
      mmap(nullptr, sizeof(KeptMemory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  KeptMemory& memory = *static_cast<KeptMemory*>(mapped);
  std::vector<float> p = RandomFloats(1, kCount, 0.1F), m(kCount), v(kCount);
  const std::vector<uint8_t> g = Stored(RandomFloats(2, kCount, 1.0F), DType::kF16);
  std::vector<uint16_t> half(kCount);
  std::copy(p.begin(), p.end(), memory.master);
  std::memcpy(memory.gradient, g.data(), g.size());
  SplitMix64 random(33);
  uint64_t killed_in_mid_run = 0;
  for (uint64_t version = 1; version <= kRounds; ++version) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Every other time the slow reference loop, so that the kill comes in time.
      TileUpdate(SelectKernels(version % 2 == 0 ? IsaLevel::kScalarReference : BestIsa()),
                 memory.areas)
          .Run(memory.PieceOf(version));
      _exit(0);
    }
    KillAtTile(child, memory, version, random.Below(kCount / 2));
    const Progress at = memory.progress.Load();
    if (at.state != Progress::State::kFinished && at.version == version) ++killed_in_mid_run;
    ASSERT_NE(RestoreOpenTile(memory.PieceOf(version), memory.areas), RestoreOutcome::kUndoLost);
    TileUpdate(SelectKernels(BestIsa()), memory.areas).Run(memory.PieceOf(version));
    const UpdateSpan plain{p.data(),    m.data(),    v.data(),    g.data(),
                           DType::kF16, half.data(), DType::kF16, kCount};
    SelectKernels(BestIsa()).update(memory.run.factors, plain);
    ASSERT_EQ(std::memcmp(memory.master, p.data(), sizeof(memory.master)), 0)
        << "version " << version;
    ASSERT_EQ(std::memcmp(memory.momentum, m.data(), sizeof(memory.momentum)), 0)
        << "version " << version;
    ASSERT_EQ(std::memcmp(memory.variance, v.data(), sizeof(memory.variance)), 0)
        << "version " << version;
    ASSERT_EQ(std::memcmp(memory.param16, half.data(), sizeof(memory.param16)), 0)
        << "version " << version;
  }
  EXPECT_GT(killed_in_mid_run, 0U);
  munmap(mapped, sizeof(KeptMemory));
}

// The loops as they run without any point, killed at a store in their middle: to the first plane of
// a tile, before which nothing of it was changed, and to the last, when it is torn.
TEST(UndoKill, AProcessKilledAtAStoreOfTheLoopsLosesNothing) {
  void* mapped =
      mmap(nullptr, sizeof(KeptMemory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  KeptMemory& memory = *static_cast<KeptMemory*>(mapped);
  std::vector<float> p = RandomFloats(1, kCount, 0.1F), m(kCount), v(kCount);
  const std::vector<uint8_t> g = Stored(RandomFloats(2, kCount, 1.0F), DType::kF16);
  std::vector<uint16_t> half(kCount);
  std::copy(p.begin(), p.end(), memory.master);
  std::memcpy(memory.gradient, g.data(), g.size());
  uint64_t version = 0;
  for (const char* point : {"optim.first_plane_stored", "optim.last_plane_stored"}) {
    ++version;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      setenv("TIDEPOOL_KILL_AT", point, 1);
      ArmPointsFromEnvironment();
      TileUpdate(SelectKernels(BestIsa()), memory.areas).Run(memory.PieceOf(version));
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point << ": " << status;
    const Progress at = memory.progress.Load();
    ASSERT_EQ(at.state, Progress::State::kOpen) << point;
    EXPECT_NEAR(static_cast<double>(at.begin), kCount / 2.0, kPageBytes)
        << "in the middle of one call of the loops";

    ASSERT_EQ(RestoreOpenTile(memory.PieceOf(version), memory.areas), RestoreOutcome::kRestored);
    TileUpdate(SelectKernels(BestIsa()), memory.areas).Run(memory.PieceOf(version));
    const UpdateSpan plain{p.data(),    m.data(),    v.data(),    g.data(),
                           DType::kF16, half.data(), DType::kF16, kCount};
    SelectKernels(BestIsa()).update(memory.run.factors, plain);
    ASSERT_EQ(std::memcmp(memory.master, p.data(), sizeof(memory.master)), 0) << point;
    ASSERT_EQ(std::memcmp(memory.momentum, m.data(), sizeof(memory.momentum)), 0) << point;
    ASSERT_EQ(std::memcmp(memory.variance, v.data(), sizeof(memory.variance)), 0) << point;
    ASSERT_EQ(std::memcmp(memory.param16, half.data(), sizeof(memory.param16)), 0) << point;
  }
  munmap(mapped, sizeof(KeptMemory));
}

}  // namespace undo_kill_test
}  // namespace tidepool::optim
