// StorageBinding: gives all parameters of a chunk one LibTorch storage, and points that storage at
// the chunk's rCache block or, while the chunk is not there, at pages that fault on every access.
//
// Who asks LibTorch for the memory of a parameter that is not there gets an exception that says
// where it is (Tensor::data_ptr, from Python numpy() and tolist() too). The pages are the second
// line, for code that has kept an address.
// On a GPU these are the same pages of host addresses that nobody may touch: host and device have
// one address space there, in which a device gives out no address that the process has reserved,
// and a kernel that reads them ends in an illegal-address error. The spare memory is one chunk's
// bytes of the device, taken at once.
// One thread (the trainer's main thread). Owns the storages; the parameters of the bound module
// share them until the binding ends, after which the module's parameters must not be read. The
// model code knows nothing of this: parameters keep shape, stride and dtype.
// Source: the pre-op and post-op hooks of Elixir v1 (section III) and PatrickStar (section 5), done
// below the tensor.
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

// Where one parameter lies: `chunk` and the byte at which it starts there.
struct BoundParameter {
  ChunkId chunk = 0;
  uint64_t byte_begin = 0;
};

class StorageBinding {
 public:
  // `chunk_bytes[c]` is the size of chunk c; tensors[i] (dense tensors on one device) is placed
  // at places[i]. The tensors' own memory is given up at once. Errors: kMemoryMapFailed, kInternal
  // (a tensor that is not dense, of another device than the first, or does not fit its chunk).
  // LibTorch's exception where a device has no room for the spare memory.
  static Result<std::unique_ptr<StorageBinding>> Bind(const std::vector<uint64_t>& chunk_bytes,
                                                      const std::vector<at::Tensor>& tensors,
                                                      const std::vector<BoundParameter>& places);
  ~StorageBinding();
  StorageBinding(const StorageBinding&) = delete;
  StorageBinding& operator=(const StorageBinding&) = delete;

  // The chunk's parameters are now at `block`; null: they are nowhere, and any access faults
  // loudly.
  void Place(ChunkId chunk, std::byte* block);
  // After a failure: the chunk's parameters are readable zeros, so that running operators end
  // without a fault.
  void PlaceSpare(ChunkId chunk);
  // An operator is about to write to a parameter of the chunk: until AdmitWrite it gets an
  // exception instead of the memory.
  void RefuseWrite(ChunkId chunk);
  void AdmitWrite(ChunkId chunk);
  // In a process forked from this one: every access to a parameter is an exception from here on.
  void RefuseForked();
  // The first bound tensor that has got other memory than the binding gave it, or kNoParameter.
  uint32_t Unbound() const;

  static constexpr uint32_t kNoParameter = UINT32_MAX;
  // The bound parameter in which the tensor's first element lies (views included), by its index in
  // `tensors`, or kNoParameter. Takes some ten nanoseconds.
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
