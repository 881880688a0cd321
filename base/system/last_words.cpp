#include "base/system/last_words.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "base/error_catalog.h"
#include "base/log.h"

namespace tidepool {
namespace {

const char* program_name = "tidepool";
constexpr const char* kAdvice =
    "free memory, or raise `ulimit -n`, `ulimit -v` or the limits of the cgroup";

// Bypasses the log, which allocates.
template <typename... Parts>
void Say(const char* format, Parts... parts) {
  std::array<char, 512> text{};
  const int length = std::snprintf(text.data(), text.size(), format, parts...);
  FlushLog();  // earlier log lines
  SayOnStderr({text.data(), std::min(text.size() - 1, static_cast<size_t>(length))});
}

void NoMemory() {
  DieOutOf("memory");
}

// operator new calls its handler until there is memory. The caller may be in the log, so the log is
// not flushed.
void Wait() {
  constexpr std::string_view kText =
      "the system gives no memory; it is waited for, as what is held here would be lost\n";
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) SayOnStderr(kText);
  poll(nullptr, 0, 1);
}

// An allocator other than operator new throws without calling the new-handler.
void Terminated() {
  const auto failure = std::current_exception();
  if (!failure)
    Say("%s: an exception left a function that lets none out, or a thread was left running\n",
        program_name);

  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    NoMemory();
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) DieOutOf("thread");
    Say("%s: an exception that nobody caught: %s\n", program_name, error.what());
  } catch (const std::exception& error) {
    Say("%s: an exception that nobody caught: %s\n", program_name, error.what());
  }

  std::abort();  // tidy: allow exit, because a terminate handler may not return
}

// If one of them were closed, the next file or socket would get its number, and messages for people
// would be written into that.
void OpenStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) DieOutOf("file descriptor");
  }
}

}  // namespace

LastWords::LastWords(const char* program) {
  program_name = program;
  std::set_new_handler(NoMemory);
  std::set_terminate(Terminated);
  OpenStandardDescriptors();
}

void WaitForMemory() {
  std::set_new_handler(Wait);
}

void DieOutOf(const char* what) {
  const ErrorEntry& entry = ErrorEntryOf(ErrorId::kHostMemoryShort);
  Say("error[TP%d]: the system gave %s no %s\n   fix:   %s\n", static_cast<int>(entry.id),
      program_name, what, kAdvice);
  _exit(entry.exit_code);  // tidy: allow exit, because nothing else can be done without memory
}

void EndBehindLog(int exit_code) {
  FlushLog();
  // tidy: allow exit, because the caller has decided to leave memory and threads as they are
  _exit(exit_code);
}

}  // namespace tidepool
