// DescriptorLane: the process side of the descriptor door: takes descriptors out of clients'
// packets, and closes those whose close the sender can delay. See descriptor_door.h.
//
// These processes are forked from one with many threads and never execute another program, so they
// do not allocate, log or take locks. They hold one socket and what a client sent, and no other
// descriptor of memserver's; they end when the socket's other end closes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool::memserver {

inline constexpr uint32_t kLaneFdsMax = 2;  // what Resume brings; Hello and Save bring one at most
// Largest frame that brings descriptors, in bytes; real ones have some hundred.
inline constexpr size_t kLanePacketMax = 4096;
inline constexpr uint32_t kLaneDirectories = 64;  // at most this many are open in one lane

// Tasks of a lane. kTakeMemory and kTakeDirectory bring the client's socket.
enum class LaneTask : uint32_t { kTakeMemory, kTakeDirectory, kRelease };
struct LaneAsk {
  uint64_t connection = 0;
  LaneTask task = LaneTask::kTakeMemory;
  uint32_t fds_max = 0;
};

// Answers of a lane.
enum class LaneWord : uint32_t {
  kTaken,      // + the packet and its descriptors, whose close cannot be delayed by the sender
  kNone,       // no packet was there
  kGone,       // the client has closed its end
  kMalformed,  // truncated, too large, or with too many descriptors
  kRefused,    // a descriptor is not of the kind that the task names
  kClosed,     // follows kMalformed and kRefused once their descriptors are closed, possibly never
};
// The answer, and the connection that it is about.
struct LaneReply {
  uint64_t connection = 0;
  LaneWord word = LaneWord::kTaken;
  uint32_t reserved = 0;
};

// Forks the process that makes lanes: a descriptor sent through `channel` becomes the lane's end of
// a channel. `title` is the memory that ps shows as this process's command line; it may be empty.
// Returns the pid, or -1.
int ForkLaneMaker(int channel, std::span<char> title);

}  // namespace tidepool::memserver
