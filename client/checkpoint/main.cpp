// tidepool-checkpoint: writes one checkpoint, and ends. Trainers start it; nobody else does.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/checkpoint/write_states.h"

namespace {

constexpr int kArguments = 4;

}  // namespace

int main(int argc, char** argv) {
  if (argc != kArguments) {
    std::fputs(
        "usage: tidepool-checkpoint DIRECTORY KEEP DESCRIPTOR\n"
        "writes what memserver gives; trainer run --checkpoint-every starts it\n",
        stderr);
    return 2;
  }
  // It outlives the trainer that a signal ends, with what it has begun.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);

  tidepool::SteadyClock clock;
  const tidepool::Status written =
      tidepool::client::WriteStates({.memory = tidepool::UniqueFd(std::atoi(argv[3])),
                                     .partial = argv[1],
                                     .keep = std::strtoull(argv[2], nullptr, 10),
                                     .clock = &clock});
  if (written.ok()) return 0;
  std::fputs((written.Format() + "\n").c_str(), stderr);
  return written.exit_code();
}
