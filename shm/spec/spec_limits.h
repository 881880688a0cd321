// SpecLimits: the largest job that both sides of the protocol agree on, and the sizes of its kept
// records.
//
// Constants only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::shm {

// Ranks of one job on one node: a rank set is one 64-bit mask.
inline constexpr uint32_t kRanksMax = 64;
inline constexpr uint32_t kChunksMax = 1u << 20;  // 64 MiB chunks: 64 TiB
inline constexpr uint32_t kParametersMax = 1u << 18;
inline constexpr uint32_t kParameterGroupsMax = 64;
inline constexpr uint32_t kDataGroupsMax = 64;
inline constexpr uint32_t kMicroBatchesMax = 1u << 16;
inline constexpr uint32_t kDimsMax = 6;
inline constexpr size_t kNameMax = 255;  // of a parameter
inline constexpr size_t kJobNameMax = 63;
inline constexpr size_t kRunNoteMax = 480;  // bytes of a note in Hello, see shm/frames.h
inline constexpr uint64_t kSpecBytesMax = 64ull << 20;

// Kept memory of a job (memserver/residency/kept/kept_records.h): an update runs in pieces of a
// chunk. Each has one progress word in a cache line of its own, because two workers update
// neighbouring pieces at the same time.
inline constexpr uint64_t kPieceElements = 256 * 1024;
// A shard whose gradients are accumulated is one piece, whose progress counts 256 elements in 22
// bits.
inline constexpr uint64_t kAddedShardElementsMax = uint64_t{1} << 30;
// Weights of a split master are staged, and split by the serve loop (1 ms): one request puts at
// most this many bytes of them.
inline constexpr uint64_t kSplitPutBytesMax = uint64_t{4} << 20;
inline constexpr uint64_t kJobRecordBytes = 4096;
inline constexpr uint64_t kChunkRecordBytes = 64;
inline constexpr uint64_t kProgressBytes = 64;
inline constexpr uint64_t kShardRecordBytes = 16;
inline constexpr uint64_t kStagingRecordBytes = 64;
// Both slots of step data on groups and parameters (step_slots.h beside it), each a head, the
// numbers of each group, and a word per parameter; they begin at a multiple of 8 bytes.
constexpr uint64_t StepSlotBytes(uint64_t groups, uint64_t parameters) {
  return 32 + groups * 32 + (parameters * 4 + 7) / 8 * 8;
}
// Areas of a window for 16-bit weights (shm/spec/weight_windows.h). More slots than ranks fetch
// chunks at the same time; further chunks would be better off with planes of their own.
inline constexpr uint32_t kWeightAreasMax = 4;

}  // namespace tidepool::shm
