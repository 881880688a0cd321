#include "bench/harness/wake_echo.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/system/futex.h"
#include "bench/harness/crew.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

FutexEcho::FutexEcho(EchoHome home, std::vector<int> cpus) : cpus_(std::move(cpus)) {
  void* const memory =
      mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no memory for two words");
  words_ = new (memory) Words;

  if (home == EchoHome::kThread) {
    thread_ = std::thread([this] { Echo(); });
    return;
  }

  child_ = fork();
  if (child_ < 0) Die("no process to be woken");
  if (child_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // when the thread that made it, and waits for it, ends
  Echo();
  _exit(0);
}

FutexEcho::~FutexEcho() {
  words_->stopping.store(true);
  Ring();
  if (child_ > 0) waitpid(child_, nullptr, 0);
  if (thread_.joinable()) thread_.join();
  munmap(words_, sizeof(Words));
}

void FutexEcho::RoundTrip() {
  Ring();
  while (words_->answer.load(std::memory_order_acquire) != rung_) __builtin_ia32_pause();
}

void FutexEcho::Ring() {
  words_->word.store(++rung_);
  WakeWord(&words_->word);
}

void FutexEcho::Echo() {
  if (!cpus_.empty()) PinTo(cpus_);
  uint32_t seen = 0;
  while (!words_->stopping.load()) {
    WaitOnWord(&words_->word, seen, kNsPerSecond);
    seen = words_->word.load(std::memory_order_acquire);
    words_->answer.store(seen, std::memory_order_release);
  }
}

EventEcho::EventEcho()
    : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  epoll_event all{};
  all.events = EPOLLIN | EPOLLET;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &all) != 0) Die("no epoll");
  thread_ = std::thread([this] { Echo(); });
}

EventEcho::~EventEcho() {
  stopping_.store(true);
  Ring();
  thread_.join();
}

void EventEcho::RoundTrip() {
  Ring();
  while (answer_.load(std::memory_order_acquire) != rung_) __builtin_ia32_pause();
}

void EventEcho::Ring() {
  word_.store(++rung_);
  const uint64_t one = 1;
  if (write(event_.get(), &one, sizeof one) != sizeof one) Die("no eventfd");
}

void EventEcho::Echo() {
  while (!stopping_.load()) {
    epoll_event ready{};
    epoll_wait(epoll_.get(), &ready, 1, 1000);
    answer_.store(word_.load(std::memory_order_acquire), std::memory_order_release);
  }
}

}  // namespace tidepool::bench
