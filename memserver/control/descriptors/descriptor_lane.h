// DescriptorLane: the other side of the descriptor door: processes that take descriptors out of
// clients' packets, and that close those whose closing may be made to take long. See
// descriptor_door.h.
//
// These processes are forked from one with many threads and never execute another program: they
// allocate nothing, log nothing and take no lock. They hold one socket and what a client sent, no
// other descriptor of memserver's; when the socket's other end closes they end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool::memserver {

inline constexpr uint32_t kLaneFdsMax = 2;  // what Resume brings; Hello and Save bring one at most
// Most bytes of a frame that brings descriptors; ours have some hundred.
inline constexpr size_t kLanePacketMax = 4096;
inline constexpr uint32_t kLaneDirectories = 64;  // open in one lane at most

// What a lane is asked for. With kTakeMemory and kTakeDirectory comes the client's socket.
enum class LaneTask : uint32_t { kTakeMemory, kTakeDirectory, kRelease };
struct LaneAsk {
  uint64_t connection = 0;
  LaneTask task = LaneTask::kTakeMemory;
  uint32_t fds_max = 0;
};

// What a lane tells.
enum class LaneWord : uint32_t {
  kTaken,      // + the packet, and its descriptors: closing those cannot be made to take long
  kNone,       // no packet was there
  kGone,       // the client has closed its end
  kMalformed,  // truncated, too large, or with too many descriptors
  kRefused,    // a descriptor is of another kind than the task names
  kClosed,     // follows kMalformed and kRefused when their descriptors are closed: maybe never
};
// The word, and about which connection.
struct LaneReply {
  uint64_t connection = 0;
  LaneWord word = LaneWord::kTaken;
  uint32_t reserved = 0;
};

// Forks the process that makes lanes: a descriptor that is sent through `channel` becomes the
// lane's end of a channel. `title` is memory that ps shows as this process's command line; it may
// be empty. Returns the pid, or -1.
int ForkLaneMaker(int channel, std::span<char> title);

}  // namespace tidepool::memserver
