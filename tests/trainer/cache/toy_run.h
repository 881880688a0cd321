// ToyRun: a toy model trained by several ranks (threads) through ParameterCache against
// MemoryServer, with everything checked on the way: every operator finds the values of the version
// that it must see, and the weights after each step are those of plain arithmetic.
//
// Values are small integers in fp32, so sums are exact in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {

struct ToyModel {
  std::vector<ParameterNote> notes;
  // For each operator the notes of its parameters; backward is the reverse.
  std::vector<std::vector<uint32_t>> forward;
  std::vector<bool> no_gradient;  // by note
  // By note: a gradient comes after every backward use, not only after the last one.
  std::vector<bool> fires_twice;
  // By unit: those at the same place on ranks that have other ones, and itself; empty without
  // units.
  std::vector<std::vector<uint32_t>> like;
};

// `layers` layers of three parameters; every fourth parameter is used again later in forward. With
// `groups` > 1, the layers' last parameters are experts: one for each data group from 1 on.
ToyModel MakeToyModel(uint64_t seed, int layers, uint32_t groups);

// Experts of a toy model.
struct ToyExperts {
  uint32_t experts = 0;  // behind each layer, each a unit with two parameters
  uint32_t world = 1;
  // Layer l's are shared by sharers[l % size] neighbouring ranks of `world`.
  std::vector<uint32_t> sharers;
};
// The same with experts. Appends the data groups beyond the first to `groups`, which has that of
// all ranks.
ToyModel MakeToyExperts(uint64_t seed, int layers, const ToyExperts& with,
                        std::vector<std::vector<Rank>>* groups);

// Notes first, first + 3, ... become frozen, and get no gradient.
void FreezeEveryThird(ToyModel* model, uint32_t first);

struct ToyConfig {
  ToyModel model;
  LayoutOptions layout;
  uint64_t blocks = 4;
  uint32_t steps = 4, micro_batches = 1;
  bool evaluate = true;     // one evaluation pass after every step, on half of the model
  uint64_t delay_max = 3;   // answers come up to so many polls late
  uint64_t delay_seed = 1;  // differs from run to run, decisions must not
  CacheOptions cache;
  AccessSchedule declared;           // of the training pass; empty: none
  bool shuffle_second_half = false;  // from the third step on, two operators change places
  // The rCache is memory of a device, whose streams run when and in what order the delay seed says:
  // operators are copies on its compute stream, and what they found is compared after the pass.
  bool on_device = false;
  bool threads = false;  // on a device: each stream has a thread
  // The device of that memory and those streams, where no CPU can touch the memory; null: a host
  // device.
  device::Device* device = nullptr;
  // On a device: streams order the collectives, not the CPU.
  bool streams_of_groups = true;
  uint64_t fail_from = UINT64_MAX;  // on a device: this request and all later ones fail on rank 0
  uint64_t fail_answer_of = UINT64_MAX;
  // Which units a micro-batch uses, of those of the model; null: all. Equal on all ranks.
  std::function<bool(uint32_t step, uint32_t batch, uint32_t unit)> uses = nullptr;
  bool takes_zeros = true;                           // the server takes gradients without bytes
  std::function<MemoryLimit(Rank)> limit = nullptr;  // null: none
};

struct ToyRankResult {
  Status status;
  std::string decisions;                   // every move, in order
  std::vector<CacheCounters> before_step;  // counters at the begin of each training step
  std::vector<CacheCounters> after_step;   // counters at the end of each training step
  std::vector<bool> followed;              // by training step
  std::vector<StepTraffic> planned;        // by training step; zeros where the order was not known
  std::vector<std::vector<GroupTraffic>> planned_groups;  // the same by data group
  // By data group, at the end of each training step: what the group's collective has sent.
  std::vector<std::vector<uint64_t>> sent_in_gathers, sent_in_reductions;
  AccessSchedule schedule;  // of the training pass
  // Values that were wrong; empty in a good run.
  std::vector<std::string> wrong;
  uint64_t smallest_bytes = 0;  // what the cache names at the end
  uint64_t requests = 0;        // on a device: requests to the service
};

struct ToyResult {
  ChunkLayout layout;
  std::vector<ToyRankResult> ranks;
  bool weights_right = false;  // at the server, after the last step
  std::vector<ChunkId> declared;
};

ToyResult RunToy(const ToyConfig& config);
// The number of blocks in which every pass of this configuration can run, as recorded by a run with
// room for all.
uint64_t SmallestFor(ToyConfig config);
// Fails the test where a rank failed or found wrong values, or where the weights are not those of
// plain arithmetic.
void ExpectGood(const ToyResult& result);

}  // namespace tidepool::trainer
