// MetaDevice: while alive, adds the operators to LibTorch's meta device that a GPT needs and the
// C++ library lacks.
//
// One at a time, in one thread. Its destructor unregisters them.
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
