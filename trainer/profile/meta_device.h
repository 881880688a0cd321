// MetaDevice: while one is alive, LibTorch's meta device has the operators that a GPT needs and its
// C++ part lacks, and counts the bytes of its tensors.
//
// One at a time, in one thread. Its destructor removes what it has registered.
#pragma once

#include <cstdint>
#include <memory>

namespace tidepool::trainer {

class MetaDevice {
 public:
  MetaDevice();
  ~MetaDevice();
  MetaDevice(const MetaDevice&) = delete;
  MetaDevice& operator=(const MetaDevice&) = delete;

  // Bytes of the tensors that live now.
  uint64_t live_bytes() const;
  // The most that was live since the last call of ForgetPeak.
  uint64_t peak_bytes() const;
  void ForgetPeak();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
