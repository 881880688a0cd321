// MetaBytes: while one is alive, the bytes of new tensors on LibTorch's meta device are counted, as
// an allocator of a device would be asked for them. FakeTensors of Python have their storage there.
//
// One at a time, in one thread. Tensors may outlive the object; they must not be resized then.
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

  // Bytes of the tensors that live now.
  uint64_t live() const;
  // The most that was live since the last call of ForgetPeak.
  uint64_t peak() const;
  void ForgetPeak();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
