// RcacheChoice: what --rcache auto has decided and why: from a layout, a profile, a device's room
// and, where they are known, its rates.
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

// All that a choice is made from. `room` has capacity, taken and spare; the rest of it is filled
// in.
struct ChoiceTask {
  const ChunkLayout* layout = nullptr;
  const StepProfile* profile = nullptr;
  Rank rank = 0;
  uint32_t micro_batches = 1;
  OptimizerSpec optimizer;
  DeviceRoom room;
  std::string room_origin;  // where the capacity comes from, for people
  // In place of a room: the most that the rCache may take; `origin` is for people.
  std::optional<RcacheLimit> limit = {};
  std::optional<RatesOfFile> rates;
  std::string why_no_rates = {};  // where it is known
  bool device_updates = false;    // states could lie on the device, beside an optimizer there
};

struct RcacheChoice {
  DeviceRoom room;
  uint64_t allowed_bytes = 0;  // for blocks, of one rank's device
  std::string room_origin;
  std::optional<RcacheLimit> limit = {};
  std::optional<RatesOfFile> rates;
  uint32_t ranks = 1;
  uint64_t block_bytes = 0;
  uint64_t smallest_blocks = 0, most_blocks = 0;  // that the order runs in; that save anything
  // With all states in host memory: what is applied.
  Share share;
  uint64_t left_bytes = 0;
  // With states of first chunks on the device. It is not applied: the search counts chunks whose
  // gradients and weights stay there too (Elixir v2), and those of states on a GPU pass through the
  // host (docs/decisions/026-states-on-a-gpu.md).
  std::optional<SearchChoice> with_states;
  std::string why_no_states;  // where that was not weighed

  // Bytes to and from one rank in a step. With adapters an upper bound: frozen chunks that stayed
  // in the rCache from the step before are not fetched again.
  uint64_t bytes_up() const { return share.bytes_up / ranks; }
  uint64_t bytes_down() const { return share.bytes_down / ranks; }
};

// Errors: kRcacheTooSmall, which names what takes the room.
Result<RcacheChoice> ChooseRcache(const ChoiceTask& task);

// The fewest blocks with which a rank that computes on the host loses nothing that is noticed:
// there a block is a second copy of what the pool has, so that each is weighed against what it
// saves. What a step fetches more than it must may take a hundredth of its arithmetic, where a
// byte that is copied takes as long as 32 multiplications and additions: about what memory and
// cores of today's hosts are to each other. The room is not looked at.
uint64_t ChooseHostBlocks(const ChoiceTask& task);

// Some lines, shown below those of the plan.
std::string DescribeChoice(const RcacheChoice& choice);
// Writes one object; the caller has written its key.
void WriteChoice(const RcacheChoice& choice, JsonWriter* json);

}  // namespace tidepool::trainer
