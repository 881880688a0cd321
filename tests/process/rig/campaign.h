// Campaign: a training job of thin trainers whose processes are killed while it runs, and the same
// job undisturbed; both must end with the same bits: every plane, and the norm of every step's
// gradients. Then the ranks leave, and memserver and keeper must hold what they held before: no
// job, no memory, no descriptor more.
//
// One thread. A round starts a memserver (with a keeper that does not start it again: the campaign
// does, as a service manager would), and one process a rank; everything that ends is started again
// until all ranks are done. They stay while the server hands over and the planes are read; the next
// server lets them leave.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/formats/optimizer.h"
#include "tests/process/rig/child_process.h"
#include "tests/process/rig/kept_states.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {

enum class Victim { kTrainer, kServer, kKeeper, kTrainerAndServer, kTrainerAndKeeper };

struct Shape {  // of the job
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  bool bf16 = false;
  uint64_t steps = 40;
  // One chunk of several pieces, which two workers update at once, in shards that copy threads copy
  // together.
  bool large = false;
  // A multiple of 16 x ranks.
  uint64_t elements() const { return large ? uint64_t{1'200'000} * world : 4800; }
  // Follow from the others, so that there are not more shapes, each of which needs its undisturbed
  // run.
  OptimizerRule rule() const {
    return static_cast<OptimizerRule>((2 * world + micro_batches) % RuleNames().size());
  }
  StateForm states() const {
    return bf16 ? static_cast<StateForm>((world + micro_batches) % StateFormNames().size())
                : StateForm::kF32;
  }
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

struct RoundPlan {
  Shape shape;
  uint32_t kills = 0;           // at random times
  std::vector<Victim> victims;  // one of them each time
  // Server and keeper at once, at random times: each rank must be told, and the job begins anew.
  uint32_t losses = 0;
  // Named kill points, "name:hit": of one server after the other (empty: killed at a random time),
  // and of rank 0.
  std::vector<std::string> server_points;
  std::string trainer_point;
  bool kill_while_leaving = false;  // memserver, once, while the ranks say goodbye
  int64_t pause_ms = 0;
};

struct RoundReport {
  std::string wrong;  // empty: all is as it should be
  uint32_t kills = 0, losses = 0;
  std::vector<std::string> points_hit;
  uint32_t recoveries = 0;  // a memserver found the job in kept memory
};

class Campaign {
 public:
  Campaign();
  // Everything from here on follows from the seed, and from the machine's pace.
  void Begin(uint64_t seed) { random_ = SplitMix64(seed); }
  RoundReport Run(const RoundPlan& plan);
  Shape RandomShape(bool large);
  SplitMix64& random() { return random_; }
  // What memserver and keeper have open when nobody is there.
  const OpenDescriptors& at_rest() const { return at_rest_; }

 private:
  struct Outcome {  // of a whole run
    KeptStates states;
    std::vector<std::map<uint64_t, std::string>> norms;  // by rank: step -> norm, as printed
    std::vector<std::string> hashes;                     // by rank
  };
  const Outcome& Undisturbed(const Shape& shape);
  class Round;

  SplitMix64 random_{1};
  OpenDescriptors at_rest_;
  std::map<Shape, std::unique_ptr<Outcome>> undisturbed_;
};

}  // namespace tidepool::testing
