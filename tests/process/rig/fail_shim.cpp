// The fail shim: preloaded into a process (LD_PRELOAD), it counts the process's calls of the
// functions of FailCall and makes one of them fail as the system would. Only calls through the C
// library's interface are seen, not those inside of it.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/process/rig/fail_page.h"

using tidepool::testing::FailCall;
using tidepool::testing::FailPage;

namespace {

FailPage* page = nullptr;  // of the process whose calls count; of others it stays null
// hwloc, which memserver asks once as it starts, does not look at what its own allocations return:
// inside of it they do not count.
thread_local bool in_hwloc = false;
struct InHwloc {
  InHwloc() { in_hwloc = true; }
  ~InHwloc() { in_hwloc = false; }
};

// The C library's function of this name. `known` holds it after the first call. A static whose
// initializer runs would do the same behind a lock, and the lock would call syscall() below.
template <typename Function>
Function* Real(Function* /*same type*/, std::atomic<void*>* known, const char* name) {
  void* function = known->load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = dlsym(RTLD_NEXT, name);
    known->store(function, std::memory_order_relaxed);
  }
  return reinterpret_cast<Function*>(function);
}
#define REAL(function)                         \
  static constinit std::atomic<void*> known{}; \
  auto* const real = Real(&function, &known, #function)

bool IsKeeper() {
  char words[256] = {};
  const int fd =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  const ssize_t count = read(fd, words, sizeof words - 1);
  close(fd);
  const size_t first = strnlen(words, sizeof words - 1);
  return count > static_cast<ssize_t>(first) + 1 && std::string_view(words + first + 1) == "keep";
}

__attribute__((constructor)) void TakePage() {
  const char* path = getenv(tidepool::testing::kFailPageVariable);
  if (path == nullptr) return;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) return;
  const long mapped =
      syscall(SYS_mmap, nullptr, sizeof(FailPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped < 0 && mapped > -4096) return;
  auto* shared = reinterpret_cast<FailPage*>(mapped);
  int32_t nobody = 0;
  if ((shared->in_keeper != 0) == IsKeeper() &&
      shared->owner.compare_exchange_strong(nobody, getpid()))
    page = shared;
}

// Counts the call; true when it is the one that fails. errno is then the system's for it.
bool Fails(FailCall call, int error) {
  if (page == nullptr || (in_hwloc && call == FailCall::kMalloc)) return false;
  const uint64_t now = ++page->counts[static_cast<size_t>(call)];
  if (page->at != now || page->call != static_cast<uint32_t>(call)) return false;
  ++page->failed;
  errno = error;
  return true;
}

// True when the word is a variable of a program or a library. Such words belong to the C++ library:
// the locks around the first use of a static. They never look again: a wake that they lose, as no
// kernel loses one, would leave a thread asleep for good. The words of rings lie in mapped memory.
bool IsVariable(long word) {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(word), &info) != 0;
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) noexcept {
  return Fails(FailCall::kMalloc, ENOMEM) ? nullptr : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) noexcept {
  return Fails(FailCall::kMalloc, ENOMEM) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) noexcept {
  return Fails(FailCall::kMalloc, ENOMEM) ? nullptr : __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return Fails(FailCall::kMalloc, ENOMEM) ? nullptr : __libc_memalign(alignment, bytes);
}

int hwloc_topology_init(void** topology) {
  REAL(hwloc_topology_init);
  const InHwloc here;
  return real(topology);
}
int hwloc_topology_load(void* topology) {
  REAL(hwloc_topology_load);
  const InHwloc here;
  return real(topology);
}

// mmap under a name of our own, with its parameters as the calling convention brings them.
void* FailingMmap(void* at, ...) noexcept __asm__("mmap");
void* FailingMmap(void* at, ...) noexcept {
  if (Fails(FailCall::kMmap, ENOMEM)) return MAP_FAILED;
  va_list rest;
  va_start(rest, at);
  const size_t bytes = va_arg(rest, size_t);
  const int protection = va_arg(rest, int), flags = va_arg(rest, int), fd = va_arg(rest, int);
  const off_t offset = va_arg(rest, off_t);
  va_end(rest);
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

int memfd_create(const char* name, unsigned flags) noexcept {
  return Fails(FailCall::kMemfdCreate, EMFILE)
             ? -1
             : static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

int ftruncate(int fd, off_t bytes) noexcept {
  return Fails(FailCall::kFtruncate, ENOSPC) ? -1
                                             : static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}

int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const long argument = va_arg(rest, long);
  va_end(rest);
  if (command == F_ADD_SEALS && Fails(FailCall::kAddSeals, EBUSY)) return -1;
  return static_cast<int>(syscall(SYS_fcntl, fd, command, argument));
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return Fails(FailCall::kOpen, EMFILE)
             ? -1
             : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  REAL(accept4);
  return Fails(FailCall::kAccept, EMFILE) ? -1 : real(fd, address, length, flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  REAL(recvmsg);
  return Fails(FailCall::kReceive, ENOMEM) ? -1 : real(fd, message, flags);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  REAL(sendmsg);
  return Fails(FailCall::kSend, ENOBUFS) ? -1 : real(fd, message, flags);
}

int madvise(void* at, size_t bytes, int advice) noexcept {
  return Fails(FailCall::kMadvise, ENOMEM)
             ? -1
             : static_cast<int>(syscall(SYS_madvise, at, bytes, advice));
}

// The error is what it returns.
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*begin)(void*),
                   void* argument) noexcept {
  REAL(pthread_create);
  return Fails(FailCall::kThread, EAGAIN) ? EAGAIN : real(thread, attributes, begin, argument);
}

int socket(int domain, int type, int protocol) noexcept {
  return Fails(FailCall::kSocket, EMFILE)
             ? -1
             : static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}

int connect(int fd, const sockaddr* address, socklen_t length) {
  REAL(connect);
  return Fails(FailCall::kConnect, ENOMEM) ? -1 : real(fd, address, length);
}

int bind(int fd, const sockaddr* address, socklen_t length) noexcept {
  return Fails(FailCall::kBind, ENOMEM) ? -1
                                        : static_cast<int>(syscall(SYS_bind, fd, address, length));
}

int socketpair(int domain, int type, int protocol, int* ends) noexcept {
  return Fails(FailCall::kSocketPair, EMFILE)
             ? -1
             : static_cast<int>(syscall(SYS_socketpair, domain, type, protocol, ends));
}

int epoll_create1(int flags) noexcept {
  return Fails(FailCall::kEpollCreate, EMFILE)
             ? -1
             : static_cast<int>(syscall(SYS_epoll_create1, flags));
}

int signalfd(int fd, const sigset_t* mask, int flags) noexcept {
  REAL(signalfd);
  return Fails(FailCall::kSignalFd, EMFILE) ? -1 : real(fd, mask, flags);
}

pid_t fork() noexcept {
  REAL(fork);
  return Fails(FailCall::kFork, EAGAIN) ? -1 : real();
}

int posix_spawnp(  // tidy: allow parameters, because the C library has them
    pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
    const posix_spawnattr_t* attributes, char* const* words, char* const* environment) {
  REAL(posix_spawnp);
  return Fails(FailCall::kSpawn, EAGAIN) ? EAGAIN
                                         : real(pid, file, actions, attributes, words, environment);
}

int flock(int fd, int operation) noexcept {
  return Fails(FailCall::kFlock, ENOLCK) ? -1 : static_cast<int>(syscall(SYS_flock, fd, operation));
}

FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  return Fails(FailCall::kFopen, EMFILE) ? nullptr : real(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  REAL(fopen64);
  return Fails(FailCall::kFopen, EMFILE) ? nullptr : real(path, mode);
}

int eventfd(unsigned value, int flags) noexcept {
  return Fails(FailCall::kEventfd, EMFILE) ? -1
                                           : static_cast<int>(syscall(SYS_eventfd2, value, flags));
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && Fails(FailCall::kEpollAdd, ENOSPC)) return -1;
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}

int poll(pollfd* entries, nfds_t count, int timeout) {
  REAL(poll);
  return Fails(FailCall::kPoll, EINTR) ? -1 : real(entries, count, timeout);
}

int epoll_wait(int epoll, epoll_event* events, int count, int timeout) {
  REAL(epoll_wait);
  return Fails(FailCall::kPoll, EINTR) ? -1 : real(epoll, events, count, timeout);
}

// A failed futex wait is one that returns early; a failed wake is lost: the sleeper looks again
// when its time is over. Private words are the language's atomics, whose code may be in a program
// of ours: they do not count.
long syscall(long number, ...) noexcept {
  REAL(syscall);
  va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(rest, long);
  va_end(rest);
  const bool of_rings = number == SYS_futex && (arguments[1] & FUTEX_PRIVATE_FLAG) == 0;
  if (of_rings && !IsVariable(arguments[0]) && Fails(FailCall::kFutex, EINTR)) return -1;
  if (number == SYS_pidfd_open && Fails(FailCall::kPidFd, EMFILE)) return -1;
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
              arguments[5]);
}

}  // extern "C"
