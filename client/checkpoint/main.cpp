// tidepool-checkpoint: writes one checkpoint, or logs the steps of a run, and exits. Trainers start
// it, and `memctl snapshot`.
//
// Two processes: one writes, and the other waits for it to end, so that memserver learns at once if
// the writer is killed and does not hold an update for it.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/point.h"
#include "base/system/futex.h"
#include "base/text/error_text.h"
#include "client/checkpoint/log_steps.h"
#include "client/checkpoint/snapshot.h"
#include "client/checkpoint/write_states.h"
#include "shm/segment.h"
#include "shm/state_stream.h"

namespace {

constexpr int kArguments = 6, kLogArguments = 10, kSnapshotArguments = 7;
constexpr int kKilled = 128;  // + the signal

// Set by SIGUSR1: nothing more comes.
std::atomic<bool> over{false};
static_assert(std::atomic<bool>::is_always_lock_free);

bool IsLog(int argc, char** argv) {
  return argc == kLogArguments && std::strcmp(argv[1], "steps") == 0;
}

bool IsSnapshot(int argc, char** argv) {
  return argc == kSnapshotArguments && std::strcmp(argv[1], "snapshot") == 0;
}

uint64_t Number(const char* text, int base = 10) {
  return std::strtoull(text, nullptr, base);
}

tidepool::Status WriteCheckpoint(char** argv, int memory, tidepool::Clock* clock) {
  return tidepool::client::WriteStates({.memory = tidepool::UniqueFd(memory),
                                        .folder = argv[1],
                                        .name = argv[2],
                                        .staged = argv[3],
                                        .keep = Number(argv[4]),
                                        .clock = clock});
}

tidepool::Status LogSteps(char** argv, int memory, pid_t trainer, tidepool::Clock* clock) {
  constexpr int kHexadecimal = 16;

  return tidepool::client::LogSteps({.memory = tidepool::UniqueFd(memory),
                                     .folder = argv[2],
                                     .checkpoints = argv[3],
                                     .run = Number(argv[4], kHexadecimal),
                                     .previous = Number(argv[5], kHexadecimal),
                                     .base = Number(argv[6]),
                                     .model = static_cast<uint32_t>(Number(argv[7])),
                                     .every = Number(argv[8]),
                                     .trainer = trainer,
                                     .over = &over,
                                     .clock = clock});
}

// Prints what `memctl snapshot` shows: version, whether the model is described, path.
int WriteSnapshot(char** argv) {
  tidepool::ArmPointsFromEnvironment();
  tidepool::SteadyClock clock;
  auto written = tidepool::client::WriteSnapshot({.socket_dir = argv[2],
                                                  .job = argv[3],
                                                  .folder = argv[4],
                                                  .like = argv[6],
                                                  .keep = Number(argv[5]),
                                                  .clock = &clock});

  if (!written.ok()) {
    std::fputs((ErrorText(written.status()) + "\n").c_str(), stderr);
    return written.status().exit_code();
  }
  const std::string text = std::to_string(written->version) + "\n" +
                           (written->described ? "1\n" : "0\n") + written->path + "\n";
  std::fputs(text.c_str(), stdout);
  return 0;
}

int Write(int argc, char** argv, int memory, pid_t trainer) {
  tidepool::ArmPointsFromEnvironment();
  tidepool::SteadyClock clock;
  const tidepool::Status written = IsLog(argc, argv) ? LogSteps(argv, memory, trainer, &clock)
                                                     : WriteCheckpoint(argv, memory, &clock);
  if (written.ok()) return 0;
  std::fputs((tidepool::ErrorText(written) + "\n").c_str(), stderr);
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
  if (IsSnapshot(argc, argv)) return WriteSnapshot(argv);

  if (argc != kArguments && !IsLog(argc, argv)) {
    std::fputs(
        "usage: tidepool-checkpoint FOLDER NAME STAGED KEEP DESCRIPTOR\n"
        "       tidepool-checkpoint snapshot SOCKET_DIR JOB FOLDER KEEP LIKE\n"
        "       tidepool-checkpoint steps FOLDER CHECKPOINTS RUN PREVIOUS BASE MODEL EVERY "
        "DESCRIPTOR\n"
        "writes what memserver gives; trainer run --checkpoint-every and --durable-steps start "
        "it, and memctl snapshot\n",
        stderr);
    return 2;
  }
  // It outlives a trainer that a signal ends, and completes what it has begun.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  std::signal(SIGUSR1, [](int) { over.store(true, std::memory_order_relaxed); });

  const int memory = std::atoi(argv[argc - 1]);
  const pid_t trainer = getppid();
  const pid_t writer = fork();
  // If no process can be forked, this one writes.
  if (writer <= 0) return Write(argc, argv, memory, trainer);
  int end = 0;
  while (waitpid(writer, &end, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(end)) return WEXITSTATUS(end);
  Leave(memory);
  // The staged files of a checkpoint. A log has none.
  std::error_code error;  // then the next trainer of this user removes them
  if (!IsLog(argc, argv)) std::filesystem::remove_all(argv[3], error);
  return kKilled + WTERMSIG(end);
}
