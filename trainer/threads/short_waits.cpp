#include "trainer/threads/short_waits.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

// The function that compilers call for `#pragma omp parallel`. Looked up by name, because the
// relevant libgomp is the one that LibTorch has loaded.
using Parallel = void (*)(void (*body)(void*), void* argument, unsigned threads, unsigned flags);

Parallel FindParallel() {
  return reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

}  // namespace

bool ShortWaits::Possible() {
  const bool user_says =
      std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  return !user_says && FindParallel() != nullptr;
}

ShortWaits::ShortWaits()
    : thread_([this] {
        if (const Parallel parallel = FindParallel();
            parallel != nullptr && !TP_PLANTED("trainer.spins_beside_others")) {
          parallel([](void*) {}, nullptr, std::max(1U, std::thread::hardware_concurrency()) + 1, 0);
        }
        ended_.wait(false);
      }) {}

ShortWaits::~ShortWaits() {
  ended_ = true;
  ended_.notify_one();
  thread_.join();  // its team ends with it
}

}  // namespace tidepool::trainer
