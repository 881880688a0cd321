#include "bench/harness/die.h"

#include <cstdio>
#include <cstdlib>

namespace tidepool::bench {

void Die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

}  // namespace tidepool::bench
