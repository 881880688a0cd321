// UpdateWays: the planes of one large optimizer state in a host pool, and the ways to update them:
// the product's, the passes of other systems, and a probe of what the memory can do.
//
// One thread, with its Crew. All ways run on the same threads and pages. Any free thread takes the
// next piece of kPieceElements, as the daemon's workers do; the emulated passes of others are split
// into one part per thread, as in OpenMP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "bench/harness/crew.h"
#include "bench/loops/memory_loops.h"
#include "bench/loops/undo_parts.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/job_states.h"
#include "memserver/residency/pool/plane_spacing.h"
#include "memserver/update/worker_team.h"
#include "optim/kernels/kernels.h"
#include "optim/undo_tile.h"

namespace tidepool::bench {

inline constexpr double kBenchLr = 1e-4, kBenchDecay = 0.1;

// The starts of the planes, which have equal lengths.
struct BenchPlanes {
  float *master = nullptr, *momentum = nullptr, *variance = nullptr;
  uint16_t *gradient16 = nullptr, *param16 = nullptr;  // bf16
  // Planes that others keep beside or instead of gradient16.
  float* gradient32 = nullptr;
  // The small form: the rest of the split master, whose other half is split16, and bf16 moments.
  int16_t* rest16 = nullptr;
  uint16_t *momentum16 = nullptr, *variance16 = nullptr, *split16 = nullptr;
};

// Random parameters and momenta; gradients up to +-`gradient` / 2; every variance is `variance`.
struct Filling {
  float variance = 1e-4F;
  float gradient = 1e-2F;
  uint64_t count = 0;  // number of leading parameters; 0: all
};

class UpdateWays {
 public:
  // Takes 28 bytes per parameter. Tunes tile and prefetch, as the daemon does at its start. Rounds
  // `parameters` up to whole pieces. Ends the program if memory is short. Not `spaced`: planes are
  // contiguous (base/formats/plane_slack.h).
  UpdateWays(uint64_t parameters, Crew* crew, bool spaced = true);

  uint64_t parameters() const { return parameters_; }
  const BenchPlanes& planes() const { return planes_; }
  const memserver::HostPool& pool() const { return *pool_; }
  // Rewrites all planes.
  void Fill(const Filling& filling);

  // In-place read-modify-write of master, momentum and variance: 24 B per parameter. `ahead`: bytes
  // of software prefetch.
  void Probe(uint64_t ahead);
  // bf16 gradient in, bf16 parameter out: 28 B per parameter. `count`: of leading parameters.
  void UpdateSafe(uint64_t count);
  void UpdatePlain(uint64_t count);  // without undo
  void UpdatePart(UndoPart part);    // with one of the two parts of the undo
  // With or without undo, repeated over so few parameters that they fit each thread's own caches:
  // the speed of the core without memory.
  void UpdateCached(bool safe);
  void UpdateByTeam();  // by the daemon's workers
  // fp32 gradient in, no 16-bit copy: also 28 B per parameter.
  void UpdateF32();
  // Split master and bf16 moments with stochastic rounding: 18 B per parameter.
  void UpdateSmall();
  // Our emulation of DeepSpeed's host path for ZeRO-3 offload: three passes over fp32 gradients, 42
  // B per parameter; and its middle pass alone.
  void DeepSpeedPasses();
  void DeepSpeedAdam();

 private:
  enum class Form { kHalf, kF32, kSmall };  // bf16 gradient and copy; fp32 only; split master
  struct Pass;                              // one run of the product's update
  void RunPieces(const std::function<void(uint32_t, uint64_t, uint64_t)>& piece, uint64_t count);
  void RunPass(const std::function<void(uint64_t, uint64_t)>& part);
  void Update(const Pass& pass);
  void UpdatePiece(const Pass& pass, uint32_t worker, uint64_t begin, uint64_t count);
  optim::UpdateSpan SpanOf(uint64_t begin, uint64_t count, Form form) const;

  Crew* crew_;
  const uint64_t parameters_;
  const MemoryLoops& loops_;
  const optim::Kernels& kernels_;
  std::unique_ptr<memserver::HostPool> pool_;
  memserver::PlaneSpacing spacing_;
  BenchPlanes planes_;
  std::vector<optim::UndoArea> areas_;  // two per thread
  struct alignas(64) ProgressLine {     // as in kept memory
    optim::ProgressWord word;
  };
  std::vector<ProgressLine> progress_;
  std::vector<optim::UndoArea> team_areas_;
  const SteadyClock clock_;  // outlives the team
  std::unique_ptr<memserver::WorkerTeam> team_;
  optim::StepFactors factors_;
  optim::Tuning tuning_;
  memserver::ParameterRun whole_;
  std::vector<memserver::WorkDone> done_;
  uint64_t version_ = 0;
};

}  // namespace tidepool::bench
