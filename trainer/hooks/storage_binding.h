// StorageBinding: gives all parameters of a chunk one LibTorch storage, and points that storage at
// the chunk's rCache block or, while the chunk is absent, at pages that fault on every access.
//
// A request to LibTorch for the memory of an absent parameter throws an exception that says where
// it is (Tensor::data_ptr; from Python also numpy() and tolist()). The pages are the second line of
// defence, for code that has kept an address. A GPU uses the same inaccessible host pages: host and
// device share one address space, in which a device never allocates an address that the process has
// reserved, and a kernel that reads the pages ends with an illegal-address error. The spare memory
// is one chunk's bytes on the device, allocated at once. One thread (the trainer's main thread).
// Owns the storages; the parameters of the bound module share them until the binding ends, after
// which they must not be read. The model code is not involved: parameters keep shape, stride and
// dtype. Source: the pre-op and post-op hooks of Elixir v1 (section III) and PatrickStar (section
// 5), done below the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/status.h"

namespace at {
class Tensor;
}

namespace tidepool::trainer {

// The location of one parameter: its chunk, and its first byte there.
struct BoundParameter {
  ChunkId chunk = 0;
  uint64_t byte_begin = 0;
};

class StorageBinding {
 public:
  // `chunk_bytes[c]` is the size of chunk c; tensors[i] (dense tensors on one device) is placed at
  // places[i]. The tensors' own memory is freed at once. Errors: kMemoryMapFailed, kInternal (a
  // tensor that is not dense, is on another device than the first, or does not fit its chunk).
  // Throws LibTorch's exception if a device has no room for the spare memory.
  static Result<std::unique_ptr<StorageBinding>> Bind(const std::vector<uint64_t>& chunk_bytes,
                                                      const std::vector<at::Tensor>& tensors,
                                                      const std::vector<BoundParameter>& places);
  ~StorageBinding();
  StorageBinding(const StorageBinding&) = delete;
  StorageBinding& operator=(const StorageBinding&) = delete;

  // The chunk's parameters are now at `block`; null: they are absent, and any access faults.
  void Place(ChunkId chunk, std::byte* block);
  // After a failure: makes the chunk's parameters readable zeros, so that running operators end
  // without a fault.
  void PlaceSpare(ChunkId chunk);
  // Until AdmitWrite, a request to write the memory of the chunk's parameters throws: an operator
  // is about to write to one.
  void RefuseWrite(ChunkId chunk);
  void AdmitWrite(ChunkId chunk);
  // In a forked child: every access to a parameter throws from now on.
  void RefuseForked();
  // The first bound tensor whose memory is no longer that of the binding, or kNoParameter.
  uint32_t Unbound() const;

  static constexpr uint32_t kNoParameter = UINT32_MAX;
  // The bound parameter that contains the tensor's first element (views included), as an index of
  // `tensors`, or kNoParameter. Takes about ten nanoseconds.
  uint32_t ParameterOf(const at::Tensor& tensor) const;
  ChunkId ChunkOf(uint32_t parameter) const;
  uint32_t parameters() const;
  uint32_t chunks() const;

 private:
  struct State;
  explicit StorageBinding(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
