// What leaves a job through a stream of states: by parameter and plane, as the process of the job's
// user takes it.
//
// One thread, and one more that reads while a call of Take goes on.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/system/futex.h"
#include "memserver/checkpoint/state_stream.h"
#include "shm/state_stream.h"
#include "tests/fakes/small_job.h"

namespace tidepool::memserver {

using Plane = std::pair<ParameterId, uint32_t>;
using States = std::map<Plane, std::vector<std::byte>>;

// Takes everything out of the stream, as the process of the job's user does.
inline States Drain(std::byte* memory) {
  shm::StreamHead* const head = shm::HeadOf(memory);
  States states;
  for (uint32_t taken = 0;;) {
    const bool whole = head->end.load() == static_cast<uint32_t>(shm::StreamEnd::kWhole);
    if (whole && taken == head->pieces) return states;
    if (head->end.load() == static_cast<uint32_t>(shm::StreamEnd::kFailed)) return {};
    const uint32_t given = head->given.load();
    if (given == taken) {
      WaitOnWord(&head->given, given, kNsPerMs);
      continue;
    }
    const shm::StreamPiece piece = *shm::PieceOf(memory, taken);
    std::vector<std::byte>& bytes = states[{piece.parameter, piece.plane}];
    const std::byte* from = shm::SlotOf(memory, taken);
    bytes.insert(bytes.end(), from, from + piece.bytes);
    head->taken.store(++taken);
    WakeWord(&head->taken);
  }
}

inline std::shared_ptr<shm::Segment> Memory() {
  return std::move(shm::Segment::Create("t", shm::kStreamBytes, shm::PeerAccess::kReadWrite))
      .value();
}

// Asks for the states of the sealed version, and returns what the reading thread is given.
inline SaveRequest Ask(ServeWorld* world, SmallTrainer* trainer) {
  world->Post(
      SaveWeights{trainer->rank(0).connection(), {}, "a checkpoint", trainer->version(), Memory()});
  world->Settle();
  std::vector<SaveRequest> saves = world->TakeSaves();
  EXPECT_EQ(saves.size(), 1U);
  return std::move(saves.front());
}

inline States Take(SaveRequest* request) {
  request->stream->opened = [] {};
  const std::shared_ptr<shm::Segment> memory = request->stream->memory;
  States states;
  std::thread reader([&] { states = Drain(memory->data()); });
  const SteadyClock clock;
  const std::atomic<bool> stop{false};
  const Status written = WriteStream(*request->stream, clock, stop, kNsPerSecond);
  EXPECT_TRUE(written.ok()) << written.Format();
  reader.join();
  return states;
}

}  // namespace tidepool::memserver
