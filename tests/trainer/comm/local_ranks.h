// Local ranks: the ranks of a run on this machine, as threads of this process with a meeting each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/fakes/real_clock.h"
#include "trainer/comm/meeting/local_meeting.h"

namespace tidepool::trainer {

inline ContentHash HashOfText(const std::string& text) {
  return HashOf(std::as_bytes(std::span(text)));
}

// A place in a run that no other test has, now or on the same machine.
inline Rendezvous PlaceOf(uint32_t rank, uint32_t world, const std::string& run) {
  Rendezvous meet{.rank = rank, .world = world, .clock = RealClock()};
  meet.one_machine = true;
  meet.run = HashOfText(run + std::to_string(getpid()));
  meet.timeout_ms = 60'000;
  return meet;
}

inline void RunRanks(uint32_t world, const std::string& run,
                     const std::function<void(LocalMeeting&, const Rendezvous&)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const Rendezvous meet = PlaceOf(rank, world, run);
      LocalMeeting meeting(meet);
      body(meeting, meet);
    });
  }
  for (auto& thread : threads) thread.join();
}

// `body` with the group of all ranks.
inline void RunGroup(uint32_t world, const std::string& run,
                     const std::function<void(std::unique_ptr<Collective>)>& body) {
  RunRanks(world, run, [&](LocalMeeting& meeting, const Rendezvous& meet) {
    const Status gathered = meeting.Gather();
    ASSERT_TRUE(gathered.ok()) << gathered.Format();
    auto group = meeting.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(group.ok()) << group.status().Format();
    ASSERT_EQ(group.value()->world(), world);
    ASSERT_EQ(group.value()->rank(), meet.rank);
    body(std::move(group).value());
  });
}

}  // namespace tidepool::trainer
