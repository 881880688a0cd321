// Last words: the orderly end of a process that lacks a resource for itself (a few bytes, a
// descriptor).
//
// Any thread. Such a shortage is not a bug and cannot be answered to a peer: the process says what
// was missing and ends with the exit code of ErrorId::kHostMemoryShort. It never aborts silently.
// memserver's keeper starts it again and no job loses a step, so allocations are not checked one by
// one. Memory of jobs is different: it is reserved at attach, and a lack of it is a refusal.
#pragma once

namespace tidepool {

// The constructor opens closed descriptors among 0 to 2 on /dev/null. From then on a failed
// allocation, and an uncaught std::bad_alloc, end this process as described. A program has one, as
// a global object before all others:
//   [[gnu::init_priority(101)]] const tidepool::LastWords last_words("program");
class LastWords {
 public:
  explicit LastWords(const char* program);  // a constant text
};
// From now on a failed operator new does not end this process: the thread waits until there is
// memory, and tries again. For a process whose end would end the work of others, and which can
// wait.
void WaitForMemory();
// `what` is a constant text: "a file descriptor for an event". Allocates nothing.
[[noreturn]] void DieOutOf(const char* what);

// Ends this process at once, after its log is written; does not wait for a log reader that does not
// read.
[[noreturn]] void EndBehindLog(int exit_code);

}  // namespace tidepool
