// ForkGuard: distinguishes the process that made an object from children that inherited it by fork,
// without a system call.
//
// One thread per object; Inherited may be called in any process. Children made by a bare clone
// system call are not noticed.
#pragma once

#include <cstdint>

namespace tidepool::client {

class ForkGuard {
 public:
  ForkGuard();
  // True in a forked child of the process that made this object, and in the child's children.
  bool Inherited() const;

 private:
  uint64_t generation_;
};

}  // namespace tidepool::client
