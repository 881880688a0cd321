// World: all that the stand-in for the CUDA driver knows of this process: its GPUs, who failed,
// what lives.
//
// Any thread. It is set up from the environment when the library is loaded, and never destroyed:
// streams' threads may run until the end.
//   FAKE_CUDA_GPUS=N           how many GPUs there are (1); with 0, cuInit finds no device
//   FAKE_CUDA_BYTES=N          memory of each (1 GiB)
//   FAKE_CUDA_WITHOUT=a,b      what the GPUs cannot: vmm, ipc, memops
//   FAKE_CUDA_MPS=1            this process is a client of the Multi-Process Service
//   FAKE_CUDA_FAIL=f:k:c,...   the k-th call of function f answers code c, and does nothing
//   FAKE_CUDA_SLOW_US=N        each 64 KiB of a copy take so long
//   FAKE_CUDA_QUEUES=N         hardware_queue.h
//   FAKE_CUDA_LEDGER=FILE      ledger.h
//   FAKE_CUDA_CONTEXT_BYTES=N  of its GPU's memory a context takes (0)
//   FAKE_CUDA_TOKEN=FILE       compute_token.h
//   FAKE_CUDA_STALL_MS=N       driver_lock.h
//   FAKE_CUDA_LATE=FILE        late_copies.h
//   CUDA_VISIBLE_DEVICES=1,0   which GPUs this process sees, in which order
// As with the driver: errors 214, 226 and 700 stay (every later call answers them); nothing works
// in the child of a fork.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/cuda_driver.h"

namespace tidepool::fake_cuda {

using device::CudaCode;

inline constexpr CudaCode kNotInitialized = 3, kIllegalAddress = 700, kAlreadyRegistered = 712,
                          kNotRegistered = 713;

struct Settings {
  std::vector<int> gpus;  // by ordinal: which GPU of the machine
  uint64_t bytes = 0;     // of each
  uint64_t context_bytes = 0;
  bool vmm = true, ipc = true, memops = true, mps = false;
  int64_t slow_us = 0;
};

enum class Need { kNothing, kInit, kContext };

// What a call finds at its beginning.
struct Entry {
  CudaCode code = device::kCudaSuccess;
  bool ok() const { return code == device::kCudaSuccess; }
};

class World {
 public:
  static World& Get();

  // Every function begins with it: counts the call and says whether it fails.
  Entry Enter(const char* function, Need need);
  CudaCode Init();
  Settings settings() const;
  // The context has seen a fault: everything answers it from now on. `breaks`: their number when
  // the operation was put in that met the fault; one of a world that was reset since, whose memory
  // is gone, breaks nothing.
  void Break(CudaCode code, uint64_t breaks);
  CudaCode broken() const;
  // Counts breaks: what was put into a stream before the last one is never done.
  uint64_t breaks() const;

  // Contexts, by ordinal. Null when there is no memory for one.
  CUctx_st* Retain(int ordinal);
  void Release(int ordinal);
  bool Holds(const CUctx_st* context) const;
  int OrdinalOf(const CUctx_st* context) const;
  uint64_t contexts() const;

  // Memory that this process has taken of a GPU. False: there is not so much.
  bool Take(int gpu, uint64_t bytes);
  void Give(int gpu, uint64_t bytes);
  uint64_t Taken(int gpu) const;

  // For tests in the same process.
  void Reset();  // reads the environment again; forgets failures, and what streams have still to do
  void FailAt(const std::string& function, uint64_t k, CudaCode code);
  uint64_t Calls(const std::string& function) const;
  std::string max_connections() const;

 private:
  struct Failure {
    std::string function;
    uint64_t calls_left = 0;
    CudaCode code = 0;
  };
  static constexpr size_t kGpusMax = 16;

  World();
  void ReadEnvironment();
  void SetBroken(CudaCode code);
  bool TakeLocked(int gpu, uint64_t bytes);
  void GiveLocked(int gpu, uint64_t bytes);

  mutable std::mutex mutex_;
  Settings settings_;
  std::vector<Failure> failures_;
  std::map<std::string, uint64_t> calls_;
  pid_t initialized_in_ = 0;
  CudaCode broken_ = device::kCudaSuccess;
  uint64_t breaks_ = 0;
  std::string max_connections_;
  std::array<uint64_t, kGpusMax> held_{};   // references of each ordinal's context
  std::array<uint64_t, kGpusMax> taken_{};  // bytes of each GPU
};

// The context of the calling thread; null for none.
extern thread_local CUctx_st* current_context;
// Ordinal of the calling thread's context; it has one.
int CurrentOrdinal();
int CurrentGpu();

}  // namespace tidepool::fake_cuda
