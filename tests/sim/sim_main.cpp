// sim_main SEED [-v] [--events N]: runs one seed of the simulation; -v prints every event. A seed
// repeats exactly.
// sim_main --seeds A..B [--events N]: runs many, one in a hundred twice, and prints one line for
// all.
// A broken invariant stops the process with its text and the seed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "tests/sim/many_seeds.h"

namespace tidepool::memserver {
namespace {

struct Arguments {
  uint64_t first = 0, last = 0;
  uint64_t events = kSimEvents;
  bool many = false, verbose = false;
};

bool Parse(int argc, char** argv, Arguments* arguments) {
  bool seeds = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "-v") {
      arguments->verbose = true;
    } else if (word == "--events" && i + 1 < argc) {
      arguments->events = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seeds" && i + 1 < argc) {
      char* dots = nullptr;
      arguments->first = std::strtoull(argv[++i], &dots, 10);
      if (std::strncmp(dots, "..", 2) != 0) return false;
      arguments->last = std::strtoull(dots + 2, nullptr, 10);
      arguments->many = seeds = true;
    } else if (!seeds && word.find_first_not_of("0123456789") == std::string::npos) {
      arguments->first = arguments->last = std::strtoull(word.c_str(), nullptr, 10);
      seeds = true;
    } else {
      return false;
    }
  }
  return seeds && arguments->first <= arguments->last && arguments->events > 0;
}

int Run(const Arguments& arguments) {
  SetLogLevel(arguments.verbose ? LogLevel::kInfo : LogLevel::kError);
  // Whole also when an invariant breaks.
  if (arguments.verbose) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const SteadyClock clock;
  const int64_t start = clock.NowNs();
  const SimReport sum = arguments.many
                            ? RunSeeds(arguments.first, arguments.last, arguments.events)
                            : RunSeed(arguments.first, arguments.events, arguments.verbose);
  const double seconds =
      static_cast<double>(clock.NowNs() - start) / static_cast<double>(kNsPerSecond);
  std::printf("%s\n", Summary(sum, arguments.last - arguments.first + 1, seconds).c_str());
  return 0;
}

}  // namespace
}  // namespace tidepool::memserver

int main(int argc, char** argv) {
  tidepool::memserver::Arguments arguments;
  if (!tidepool::memserver::Parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "usage: sim_main SEED [-v] [--events N] | sim_main --seeds A..B [--events N]\n");
    return 2;
  }
  return tidepool::memserver::Run(arguments);
}
