// Context, and the substitute for Gloo's own headers as a whole: the torch wheel leaves them out,
// although c10d's ProcessGroupGloo.hpp includes them.
//
// Why this is safe: ProcessGroupGloo.hpp holds Gloo objects only behind std::shared_ptr,
// std::unique_ptr and references, so the size and layout of its classes do not depend on these
// types. Our code creates none of these objects and calls none of their virtual methods:
// libtorch_cpu.so creates and uses them, with Gloo's real definitions. The declarations below only
// make that header's inline functions compile; a test that talks between four ranks would fail at
// once if a layout differed. Only trainer/comm/gloo_collective.cpp may have this folder on its
// include path.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  virtual ~Context();
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
