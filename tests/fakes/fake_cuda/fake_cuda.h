// FakeCuda: levers of the stand-in for the CUDA driver (libcuda.so.1 of this folder), for tests in
// whose process it is.
//
// One thread. Programs that a test starts find it through LD_LIBRARY_PATH = FakeCuda::Folder(), and
// are told what to be by the environment (world.h).
#pragma once

#include <cstdint>
#include <string>

namespace tidepool::fake_cuda {

class FakeCuda {
 public:
  // Loads it into this process, so that whoever asks for libcuda.so.1 from now on gets it.
  static FakeCuda& Load();
  static std::string Folder();

  // Reads the environment again (world.h), forgets failures, calls and broken contexts; what lives
  // goes on living.
  void Reset();
  // From now on, the k-th call (from 1) of `function` answers `code` and does nothing; what lets go
  // of something still does.
  void FailAt(const std::string& function, uint64_t k, int code);
  // Calls since Reset.
  uint64_t Calls(const std::string& function);
  // Contexts, memory, address ranges, registrations, streams and events that this process has not
  // given back.
  uint64_t live();
  // CUDA_DEVICE_MAX_CONNECTIONS as cuInit found it.
  std::string max_connections();

 private:
  FakeCuda();
  void* Lever(const char* name);

  void* library_;
};

}  // namespace tidepool::fake_cuda
