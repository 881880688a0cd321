// ResidencyColumns: what the columns of the residency picture stand for, and which chunks hold
// experts. Names come with the job's description: those of its tensors, which a trainer gave.
//
// Any thread; pure functions. Names are a peer's text: the description's checks bound their number
// and length (shm/spec/spec_limits.h), and nothing else is known of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memserver/admin/reports/report.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// A column that covers more than one chunk: all chunks of a layer, an expert, a tensor or a job.
struct Column {
  std::string name = {};
  std::vector<ChunkId> chunks = {};
  uint64_t bytes = 0;        // of values; without padding if tensors are known
  Version fetched_step = 0;  // the largest ChunkRow::fetched_step of its chunks
};

// The columns of a job; empty if each chunk is a column. Valid for any JobRow.
std::vector<Column> ColumnsOf(const JobRow& job, ResidencyBy by);

// The expert to which a tensor belongs, by its name as Hugging Face's models have it:
// "model.layers.3.mlp.experts.5.up_proj.weight" belongs to expert 5 of "model.layers.3".
struct ExpertName {
  std::string_view layer;  // a part of the tensor's name
  uint32_t number = 0;
};
// nullopt if the tensor belongs to no expert, or to all of a layer at once (fused experts).
std::optional<ExpertName> ExpertOf(std::string_view tensor);

// Neighbouring chunks that hold neighbouring experts of one layer.
struct ExpertRange {
  std::string layer;
  uint32_t first = 0, last = 0;             // experts
  ChunkId first_chunk = 0, last_chunk = 0;  // chunks
  uint64_t chunks_fetched = 0;              // for the step sealed last, or the open one
};
// In the order of chunks; empty for a job without experts, or whose tensors are unknown.
std::vector<ExpertRange> ExpertRangesOf(const JobRow& job);

}  // namespace tidepool::memserver
