#include "tests/fakes/fake_cuda/ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace tidepool::fake_cuda {
namespace {

struct flock LockOf(int place, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = place;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Ledger* Ledger::Get() {
  static const char* const path = std::getenv("FAKE_CUDA_LEDGER");
  static Ledger* const ledger = path == nullptr ? nullptr : new Ledger(path);
  return ledger;
}

Ledger::Ledger(const char* path) : fd_(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (fd_ < 0 || ftruncate(fd_, sizeof(Page)) != 0) std::abort();
  page_ =
      static_cast<Page*>(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
  if (page_ == MAP_FAILED) std::abort();
  for (int place = 0; place < kPlaces && place_ < 0; ++place) {
    struct flock lock = LockOf(place, F_WRLCK);
    if (fcntl(fd_, F_SETLK, &lock) == 0) place_ = place;
  }
  if (place_ < 0) std::abort();
  for (auto& bytes : page_->bytes[static_cast<size_t>(place_)]) bytes = 0;
}

bool Ledger::IsTaken(int place) const {
  struct flock lock = LockOf(place, F_WRLCK);
  return fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void Ledger::LockAll(bool lock) const {
  struct flock whole = LockOf(kPlaces, lock ? F_WRLCK : F_UNLCK);
  (void)fcntl(fd_, F_SETLKW, &whole);
}

uint64_t Ledger::Taken(int gpu) const {
  uint64_t taken = 0;
  for (int place = 0; place < kPlaces; ++place) {
    if (place == place_ || IsTaken(place))
      taken += page_->bytes[static_cast<size_t>(place)][static_cast<size_t>(gpu)];
  }
  return taken;
}

bool Ledger::Take(int gpu, uint64_t bytes, uint64_t all) {
  LockAll(true);
  const uint64_t taken = Taken(gpu);
  const bool fits = bytes <= all && taken <= all - bytes;
  if (fits) page_->bytes[static_cast<size_t>(place_)][static_cast<size_t>(gpu)] += bytes;
  LockAll(false);
  return fits;
}

void Ledger::Give(int gpu, uint64_t bytes) {
  page_->bytes[static_cast<size_t>(place_)][static_cast<size_t>(gpu)] -= bytes;
}

}  // namespace tidepool::fake_cuda
