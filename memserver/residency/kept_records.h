// The records of a job that lie in kept memory (the host pool), so that a server that comes after this one can finish a sealed step.
//
// Written by the serve loop only, but for the progress words, which belong to the worker that holds the piece. Layout of a job's records:
//
//   +0                 JobRecord        identity, the two step records, the sealed version
//   +kJobRecordBytes   ChunkRecord      one a chunk, in order of ChunkId
//   then               progress words   8 bytes a piece, chunk by chunk (optim/undo_tile.h)
//   then               norm sums        one double a parameter, in order of ParameterId
//
// The commit (rule R1 of write-ahead logging: gradients are the redo log, the step record is the commit): the record of version v is
// written to steps[v % 2], then sealed_version := v by one 64-bit store. A chunk whose version is below sealed_version is still to be
// updated; it is published by one 64-bit store of its new version. Any change of a struct here obliges a new kKeptLayout.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ids.h"
#include "shm/job_spec.h"

namespace tidepool::memserver {

inline constexpr uint32_t kJobRecordMagic = 0x4b445054;    // "TPDK"
inline constexpr uint32_t kChunkRecordMagic = 0x43525054;  // "TPRC"
inline constexpr uint32_t kKeptLayout = 1;
// Version of a chunk whose weights have not arrived.
inline constexpr Version kNoVersion = ~Version{0};

// Everything that decides the update to `version`, and what a restarted trainer needs.
struct StepRecord {
  Version version;          // that the update makes
  uint64_t optimizer_step;  // of bias correction: steps that were not skipped, this one included
  float learning_rate;      // before the group's factor
  float gradient_scale;     // clip factor / loss scale
  float loss_scale;
  uint32_t scaler_steps;
  uint64_t data_cursor;
  uint64_t random_state;
  double grad_norm;  // unscaled, before clipping
  uint32_t skipped;  // 1: a gradient was not finite; versions advance, nothing else changes
  uint32_t reserved;
};

struct JobRecord {
  std::atomic<uint32_t> magic;  // stored last: a record without it was never complete
  uint32_t layout;
  JobId job;
  uint32_t chunk_count;
  uint64_t fingerprint;  // of the job's specification
  uint64_t parameter_count;
  alignas(64) std::atomic<Version> sealed_version;
  alignas(64) StepRecord steps[2];  // of version v at v % 2
};

struct ChunkRecord {
  uint32_t magic;
  ChunkId chunk;
  uint64_t elements;
  std::atomic<Version> version;  // kNoVersion until the weights are in
  uint64_t reserved[5];
};

static_assert(sizeof(JobRecord) <= shm::kJobRecordBytes);
static_assert(sizeof(ChunkRecord) == shm::kChunkRecordBytes);
static_assert(sizeof(std::atomic<Version>) == 8 && std::atomic<Version>::is_always_lock_free);

}  // namespace tidepool::memserver
