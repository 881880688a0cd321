#include "trainer/advice/limits/run_limits.h"

#include <algorithm>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kBatchMost = 1 << 16;  // sequences; no batch of one machine is larger

uint64_t BytesOf(const StepProfile& profile) {
  return profile.buffer_bytes + profile.activation_bytes + profile.activation_bytes / 4;
}

// The largest batch that fits, on the line through the bytes of batch_step and 2 batch_step.
uint64_t OnTheLine(const LimitsTask& task, uint64_t one, uint64_t two) {
  if (one > task.room_bytes) return 0;
  if (two <= one) return kBatchMost / task.batch_step * task.batch_step;
  const uint64_t more = (task.room_bytes - one) / (two - one);
  return std::min(kBatchMost / task.batch_step, 1 + more) * task.batch_step;
}

Status FindBatch(const LimitsTask& task, RunLimits* limits) {
  const auto bytes_at = [&](uint64_t sequences) -> Result<uint64_t> {
    TP_ASSIGN_OR_RETURN(const StepProfile profile, task.profile(sequences));
    return BytesOf(profile);
  };
  TP_ASSIGN_OR_RETURN(const uint64_t one, bytes_at(task.batch_step));
  TP_ASSIGN_OR_RETURN(const uint64_t two, bytes_at(2 * task.batch_step));
  limits->batch = OnTheLine(task, one, two);

  // The line is an approximation: the batch's own profile decides.
  for (; limits->batch > 0; limits->batch -= task.batch_step) {
    TP_ASSIGN_OR_RETURN(limits->batch_bytes, bytes_at(limits->batch));
    if (limits->batch_bytes <= task.room_bytes) break;
  }
  for (;;) {
    TP_ASSIGN_OR_RETURN(limits->next_bytes, bytes_at(limits->batch + task.batch_step));
    const bool fits = limits->next_bytes <= task.room_bytes;
    if (!fits || limits->batch + task.batch_step > kBatchMost) return {};
    limits->batch += task.batch_step;
    limits->batch_bytes = limits->next_bytes;
  }
}

std::string DescribeBatch(const RunLimits& limits) {
  const std::string room = FormatBytes(limits.room_bytes) + " that are left of " + limits.room_name,
                    next = FormatBytes(limits.next_bytes);
  if (limits.batch == 0) {
    return "no batch fits: one of the smallest takes " + next + " beside the rCache, of " + room +
           "\n";
  }

  const std::string batch = "--batch " + std::to_string(limits.batch) + ": " +
                            FormatBytes(limits.batch_bytes) + " of the " + room;
  if (limits.next_bytes <= limits.room_bytes)
    return "what fits is " + batch + " (larger ones were not tried)\n";
  return "the largest batch that fits is " + batch + " (the next one: " + next + ")\n";
}

}  // namespace

Result<RunLimits> FindLimits(const LimitsTask& task) {
  RunLimits limits;
  limits.room_bytes = task.room_bytes;
  limits.room_name = task.room_name;
  limits.loss_is_time = task.on_host;
  TP_RETURN_IF_ERROR(FindBatch(task, &limits));

  const ChunkLayout& layout = *task.choice.layout;
  const SmallRcache small = SmallestRcache(task.choice, task.on_host, kLossMost);
  limits.rcache_bytes = layout.RcacheBytes(task.choice.rank, small.blocks);
  const uint64_t whole = layout.RcacheBytes(task.choice.rank, small.most_blocks);
  limits.rcache_share =
      whole == 0 ? 1 : static_cast<double>(limits.rcache_bytes) / static_cast<double>(whole);
  limits.loss = small.loss;
  return limits;
}

std::string DescribeLimits(const RunLimits& limits) {
  const std::string text = "limits    " + DescribeBatch(limits);
  const std::string of = limits.loss_is_time ? "of a step's time" : "more bytes";
  return text + std::string(10, ' ') + "the smallest rCache that loses less than " +
         FormatFixed(100 * kLossMost, 0) + " % is --rcache " + std::to_string(limits.rcache_bytes) +
         " (" + FormatBytes(limits.rcache_bytes) + ", " +
         FormatFixed(100 * limits.rcache_share, 0) + " % of the largest that helps; it loses " +
         FormatFixed(100 * limits.loss, 1) + " % " + of + ")\n";
}

void WriteLimits(const RunLimits& limits, JsonWriter* json) {
  json->BeginObject()
      .Field("batch", limits.batch)
      .Field("batch_bytes", limits.batch_bytes)
      .Field("next_batch_bytes", limits.next_bytes)
      .Field("room_bytes", limits.room_bytes);
  json->Field("rcache_bytes", limits.rcache_bytes)
      .Field("rcache_share", limits.rcache_share)
      .Field("loss", limits.loss)
      .Field("loss_of", limits.loss_is_time ? "seconds" : "bytes")
      .EndObject();
}

}  // namespace tidepool::trainer
