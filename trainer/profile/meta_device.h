// MetaDevice: while one is alive, LibTorch's meta device has the operators that a GPT needs and its
// C++ part lacks.
//
// One at a time, in one thread. Its destructor removes what it has registered.
#pragma once

#include <memory>

namespace tidepool::trainer {

class MetaDevice {
 public:
  MetaDevice();
  ~MetaDevice();
  MetaDevice(const MetaDevice&) = delete;
  MetaDevice& operator=(const MetaDevice&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
