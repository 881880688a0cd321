// NcclTable: the NCCL functions that the collectives use, loaded at run time: nothing is linked,
// and a process has at most one NCCL.
//
// Any thread. Types are plain, so that this header needs none of NCCL's and a test can fill the
// table; nccl_table.cpp compares them with nccl.h. LibTorch's CUDA library brings its own
// libnccl.so.2 and must be loaded first: the loader then returns that one, by its soname.
#pragma once

#include <array>
#include <cstddef>

#include "base/status.h"

namespace tidepool::trainer {

// Mirrors ncclUniqueId.
struct NcclId {
  std::array<char, 128> bytes{};
};

struct NcclTable {
  static constexpr int kSuccess = 0, kInProgress = 7;  // results
  // Element types.
  static constexpr int kUint8 = 1, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
  static constexpr int kSum = 0;

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclId* id) = nullptr;
  // ncclCommInitRankConfig; `config` comes from NonBlockingConfig.
  int (*comm_init_rank_config)(void** comm, int ranks, NcclId id, int rank, void* config) = nullptr;
  int (*comm_get_async_error)(void* comm, int* error) = nullptr;
  int (*comm_finalize)(void* comm) = nullptr;
  int (*comm_destroy)(void* comm) = nullptr;
  int (*comm_abort)(void* comm) = nullptr;
  int (*all_gather)(const void* send, void* receive, size_t send_count, int type, void* comm,
                    void* stream) = nullptr;
  int (*reduce_scatter)(const void* send, void* receive, size_t receive_count, int type, int op,
                        void* comm, void* stream) = nullptr;
  // Calls between group_start and group_end begin together, as one operation.
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* send, size_t count, int type, int peer, void* comm,
              void* stream) = nullptr;
  int (*receive)(void* receive, size_t count, int type, int peer, void* comm,
                 void* stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(void* comm) = nullptr;
};

// Loads NCCL: a libnccl.so.2 that is loaded already, else the one that the loader finds. Lives as
// long as the process. Errors: kCollectiveFailed (none found, one that lacks a function, or a build
// without NCCL's header; the text says which).
Result<const NcclTable*> LoadNccl();

// A configuration for non-blocking calls, made with this build's NCCL header; null in a build
// without it. One thread.
void* NonBlockingConfig();

}  // namespace tidepool::trainer
