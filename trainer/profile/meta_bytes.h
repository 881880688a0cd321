// MetaBytes: while alive, counts the bytes of new tensors on LibTorch's meta device as a device
// allocator would be asked for them. Storages of Python's FakeTensors count too.
//
// One at a time, in one thread. Tensors may outlive the object, but must not be resized afterwards.
#pragma once

#include <cstdint>
#include <memory>

namespace tidepool::trainer {

class MetaBytes {
 public:
  MetaBytes();
  ~MetaBytes();
  MetaBytes(const MetaBytes&) = delete;
  MetaBytes& operator=(const MetaBytes&) = delete;

  // Bytes of the tensors alive now.
  uint64_t live() const;
  // The maximum of live() since the last ForgetPeak.
  uint64_t peak() const;
  void ForgetPeak();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
