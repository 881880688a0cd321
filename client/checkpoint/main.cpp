// tidepool-checkpoint: writes one checkpoint and exits. Only trainers start it.
//
// Two processes: one writes, and the other waits for it to end, so that memserver learns at once if
// the writer is killed and does not hold an update for it.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/point.h"
#include "base/system/futex.h"
#include "client/checkpoint/write_states.h"
#include "shm/segment.h"
#include "shm/state_stream.h"

namespace {

constexpr int kArguments = 6;
constexpr int kKilled = 128;  // + the signal

int Write(char** argv, int memory) {
  tidepool::ArmPointsFromEnvironment();
  tidepool::SteadyClock clock;

  const tidepool::Status written =
      tidepool::client::WriteStates({.memory = tidepool::UniqueFd(memory),
                                     .folder = argv[1],
                                     .name = argv[2],
                                     .staged = argv[3],
                                     .keep = std::strtoull(argv[4], nullptr, 10),
                                     .clock = &clock});
  if (written.ok()) return 0;
  std::fputs((written.Format() + "\n").c_str(), stderr);
  return written.exit_code();
}

// Tells memserver that nobody reads any more.
void Leave(int memory) {
  const auto mapped =
      tidepool::shm::Segment::Map(tidepool::UniqueFd(memory), tidepool::shm::kStreamBytes,
                                  tidepool::shm::PeerAccess::kReadWrite);
  if (!mapped.ok()) return;
  tidepool::shm::StreamHead* const head = tidepool::shm::HeadOf(mapped.value()->data());
  head->left.store(1, std::memory_order_release);
  tidepool::WakeWord(&head->taken);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != kArguments) {
    std::fputs(
        "usage: tidepool-checkpoint FOLDER NAME STAGED KEEP DESCRIPTOR\n"
        "writes what memserver gives; trainer run --checkpoint-every starts it\n",
        stderr);
    return 2;
  }
  // It outlives a trainer that a signal ends, and completes what it has begun.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);

  const int memory = std::atoi(argv[5]);
  const pid_t writer = fork();
  // If no process can be forked, this one writes.
  if (writer <= 0) return Write(argv, memory);
  int end = 0;
  while (waitpid(writer, &end, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(end)) return WEXITSTATUS(end);
  Leave(memory);
  std::error_code error;  // then the next trainer of this user removes them
  std::filesystem::remove_all(argv[3], error);
  return kKilled + WTERMSIG(end);
}
