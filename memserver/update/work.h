// Work and WorkDone: messages between the serve loop and the optimizer workers: plain values with
// addresses of planes.
//
// The serve loop makes Work and guarantees that nobody else writes the named ranges, and that they
// do not move, until the WorkDone of the same name came back.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/ids.h"
#include "memserver/residency/job_states.h"
#include "memserver/traffic/staging/piece_buffer.h"
#include "memserver/update/update_factors.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

// What a worker does; `->` leads from its input to its output.
enum class WorkKind : uint8_t {
  kNarrow,      // fp32 -> 16 bit: param16 of a shard whose weights arrived
  kWiden,       // 16 bit -> fp32: first micro-batch of a shard into its slot
  kAccumulate,  // fp32 += dtype: a later micro-batch
  // Sums the squares of each parameter of a chunk, and finds whether all gradients are finite.
  kScan,
  kUpdate,  // one piece of a chunk
  // Weights of a piece that spills -> its planes in staging; momentum and variance are zero unless
  // they were put.
  kStage,
  kUnstage,  // a stored piece -> param16
  kVerify,   // checks a piece that was read for it
  // Weights of a piece that lie on NVMe alone -> the slot of their chunk (weight_fill.h)
  kFillWindow,
  kMoveOut,       // states of a piece on the host -> its planes in staging
  kHash,          // bytes of a frozen chunk after a put
  kNarrowStored,  // weights stored on a GPU -> param16
};

// The identity of a work item, there and back.
struct WorkName {
  WorkKind kind = WorkKind::kScan;
  JobId job = 0;
  uint32_t attempt = 0;  // of the open step; work of an earlier attempt has no effect
  ChunkId chunk = 0;
  // kUpdate, kStage, kUnstage, kVerify, kFillWindow, kMoveOut: piece; kScan: 0; kNarrowStored: rank
  // of the share; else rank.
  uint32_t index = 0;
};

struct Work {
  WorkName name;
  // Yields to jobs of a higher priority and their trainers: the thread lowers its priority
  // (ThreadNice).
  bool background = false;
  bool timed = false;  // the worker notes when it does this
  // kNarrow, kNarrowStored, kWiden, kAccumulate: `count` elements; dtype is that of the 16-bit
  // side, or of the addend. kScan: `from` is the chunk's gradient.
  // kHash: `count` bytes at `from` go into the ContentHasher at `to`.
  void* to = nullptr;
  const void* from = nullptr;
  DType dtype = DType::kF32;
  uint64_t count = 0;
  // kScan and kUpdate: the chunk's parameters. kScan writes one sum each.
  std::span<const ParameterRun> runs;
  double* norm_sums = nullptr;
  // kUpdate: elements [begin, begin + planes.count) of the chunk; `planes` starts at `begin`.
  uint64_t begin = 0;
  optim::UpdateSpan planes;
  ChunkFactors factors;
  // kMoveOut: `planes` are in staging, `source` are on the host.
  optim::UpdateSpan source;
  // kUpdate of a spilled piece and kStage, whose `planes` are in staging; kUnstage, kVerify,
  // kFillWindow. `copy` is the part of the master that trainers fetch from the host: all of it in
  // fp32 jobs, its upper halves in jobs with a split one. An update writes it; kStage reads those
  // halves.
  PieceBuffer staged;
  std::byte* copy = nullptr;
  // kStage: the put words of the piece's moments (base/formats/moment_words.h).
  MomentLanding::Words moments{};
  // kUpdate, and kAccumulate, whose version is the sequence number of the addition.
  optim::ProgressWord* progress = nullptr;
  uint64_t identity = 0;
  Version version = 0;
};

// The identity of a piece in undo areas: the job's nonce (odd) and the place of the piece's
// progress word. The same after a restart, never 0, and never that of a piece of an earlier job: an
// undo area may still hold a tile of a job that had this place.
uint64_t PieceIdentity(const JobStates& states, const HostPool& pool, const void* progress);

// The progress word of an update piece.
optim::ProgressWord* ProgressOf(const Chunk& chunk, uint32_t piece);

// The planes of a piece on the host; null for planes that the job or the chunk does not have there.
optim::UpdateSpan HostPlanesOf(const Chunk& chunk, uint32_t piece);

// Points `planes` at the planes of `planes.count` elements of the chunk in staging.
void PointIntoStaging(const shm::JobSpec& spec, ChunkId chunk, std::span<std::byte> payload,
                      optim::UpdateSpan* planes);

// Approximate bytes of memory that a worker reads and writes for it: the cost of the work, since
// all of it is memory bound.
uint64_t BytesTouched(const Work& work);

struct WorkDone {
  WorkName name;
  bool finite = true;  // kScan
  // False if a staged piece that was read does not match its checks; then nothing was done.
  bool intact = true;
  uint64_t bytes = 0;  // BytesTouched of the work
  // When timed work was done, by the team's clock, and by which worker; else begin_ns 0.
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t worker = 0;
};

}  // namespace tidepool::memserver
