// sim_main SEED [-v] [TICKS]: runs one seed of the simulation; -v prints every event. A seed repeats exactly.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "tests/sim/sim_world.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: sim_main SEED [-v] [TICKS]\n");
    return 2;
  }
  tidepool::SetLogLevel(argc > 2 ? tidepool::LogLevel::kInfo : tidepool::LogLevel::kError);
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const bool verbose = argc > 2 && std::strcmp(argv[2], "-v") == 0;
  const uint32_t ticks = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 12000;
  const tidepool::memserver::SimReport report = tidepool::memserver::RunSeed(seed, ticks, verbose);
  std::printf(
      "seed %llu: %llu events, hash %016llx, %llu steps sealed (%llu skipped), %llu deaths, %llu rejoins, %llu saves, %llu refusals\n",
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(report.events), static_cast<unsigned long long>(report.hash),
      static_cast<unsigned long long>(report.steps_sealed), static_cast<unsigned long long>(report.steps_skipped),
      static_cast<unsigned long long>(report.deaths), static_cast<unsigned long long>(report.rejoins),
      static_cast<unsigned long long>(report.saves), static_cast<unsigned long long>(report.refusals));
  return 0;
}
