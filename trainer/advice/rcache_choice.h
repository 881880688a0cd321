// RcacheChoice: the decision of --rcache auto and its reasons: from a layout, a profile, the
// device's memory and, if known, its rates.
//
// Any thread; torch-free, pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/text/json_writer.h"
#include "base/formats/optimizer.h"
#include "base/status.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/search.h"
#include "trainer/profile/step_profile.h"
#include "trainer/advice/plan_choice.h"
#include "trainer/advice/rates_file.h"

namespace tidepool::trainer {

// Inputs of a choice. `room` has capacity, taken and spare set; the other fields are filled in
// here.
struct ChoiceTask {
  const ChunkLayout* layout = nullptr;
  const StepProfile* profile = nullptr;
  Rank rank = 0;
  uint32_t micro_batches = 1;
  OptimizerSpec optimizer;
  DeviceRoom room;
  std::string room_origin;  // source of the capacity, for people
  // In place of a room: the limit of the rCache; `origin` is for people.
  std::optional<RcacheLimit> limit = {};
  std::optional<RatesOfFile> rates;
  std::string why_no_rates = {};  // if it is known
  bool device_updates = false;    // states could be on the device, with an optimizer there
};

struct RcacheChoice {
  DeviceRoom room;
  uint64_t allowed_bytes = 0;  // for blocks, on one rank's device
  std::string room_origin;
  std::optional<RcacheLimit> limit = {};
  std::optional<RatesOfFile> rates;
  uint32_t ranks = 1;
  uint64_t block_bytes = 0;
  uint64_t smallest_blocks = 0, most_blocks = 0;  // minimum for the order; most that save anything
  // With all states in host memory: the applied choice.
  Share share;
  uint64_t left_bytes = 0;
  // With --dynamic-rcache: the blocks of the rCache, of which a moment may use those that operators
  // leave room for; 0: `share.blocks`, at every moment.
  uint64_t dynamic_blocks = 0;
  // With states of leading chunks on the device. Not applied: the search counts chunks whose
  // gradients and weights stay there too (Elixir v2), while those of states on a GPU pass through
  // the host (docs/decisions/026-states-on-a-gpu.md).
  std::optional<SearchChoice> with_states;
  std::string why_no_states;  // if that was not evaluated

  // Bytes to and from one rank per step. With adapters an upper bound: frozen chunks still in the
  // rCache from the previous step are not fetched again.
  uint64_t bytes_up() const { return share.bytes_up / ranks; }
  uint64_t bytes_down() const { return share.bytes_down / ranks; }
};

// Errors: kRcacheTooSmall, naming what takes the memory.
Result<RcacheChoice> ChooseRcache(const ChoiceTask& task);

// The fewest blocks with which a rank on the host has no noticeable loss. There a block is a second
// copy of data in the pool, so its cost is weighed against its saving: refetches of a step may take
// a hundredth of its arithmetic, where copying a byte takes as long as 32 multiply-adds, about the
// ratio of memory and cores on today's hosts. Ignores the available memory.
uint64_t ChooseHostBlocks(const ChoiceTask& task);

// The smallest rCache within a limit of loss.
struct SmallRcache {
  uint64_t blocks = 0, most_blocks = 0;  // most_blocks: more save no bytes
  double loss = 0;                       // share of a step, compared with most_blocks
};
// The fewest blocks with which a step loses a share of less than `loss_most` compared with
// most_blocks. The loss is of time on the host, with the weights of ChooseHostBlocks; else of bytes
// moved. Ignores the available memory.
SmallRcache SmallestRcache(const ChoiceTask& task, bool on_host, double loss_most);

// Several lines, printed below the plan.
std::string DescribeChoice(const RcacheChoice& choice);
// Writes one object; the caller has already written its key.
void WriteChoice(const RcacheChoice& choice, JsonWriter* json);

}  // namespace tidepool::trainer
