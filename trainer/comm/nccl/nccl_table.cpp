#include "trainer/comm/nccl/nccl_table.h"

#if TIDEPOOL_HAS_NCCL
#include <dlfcn.h>
#include <nccl.h>
#endif

namespace tidepool::trainer {

#if TIDEPOOL_HAS_NCCL

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId) && alignof(NcclId) == alignof(ncclUniqueId));
static_assert(NcclTable::kSuccess == ncclSuccess && NcclTable::kInProgress == ncclInProgress &&
              NcclTable::kSum == ncclSum);
static_assert(NcclTable::kFloat16 == ncclFloat16 && NcclTable::kFloat32 == ncclFloat32 &&
              NcclTable::kBfloat16 == ncclBfloat16);
static_assert(sizeof(int) == sizeof(ncclResult_t) && sizeof(int) == sizeof(ncclDataType_t) &&
              sizeof(int) == sizeof(ncclRedOp_t));

namespace {

constexpr const char* kLibrary = "libnccl.so.2";

template <typename Function>
bool Find(void* library, const char* name, Function* out, std::string* missing) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  if (*out == nullptr && missing->empty()) *missing = name;
  return *out != nullptr;
}

Result<NcclTable> Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status(ErrorId::kCollectiveFailed, "libnccl.so.2 is not found")
        .Why(why == nullptr ? "" : why);
  }

  NcclTable table;
  std::string missing;
  Find(library, "ncclGetVersion", &table.get_version, &missing);
  Find(library, "ncclGetUniqueId", &table.get_unique_id, &missing);
  Find(library, "ncclCommInitRankConfig", &table.comm_init_rank_config, &missing);
  Find(library, "ncclCommGetAsyncError", &table.comm_get_async_error, &missing);
  Find(library, "ncclCommFinalize", &table.comm_finalize, &missing);
  Find(library, "ncclCommDestroy", &table.comm_destroy, &missing);
  Find(library, "ncclCommAbort", &table.comm_abort, &missing);

  Find(library, "ncclAllGather", &table.all_gather, &missing);
  Find(library, "ncclReduceScatter", &table.reduce_scatter, &missing);
  Find(library, "ncclGroupStart", &table.group_start, &missing);
  Find(library, "ncclGroupEnd", &table.group_end, &missing);
  Find(library, "ncclSend", &table.send, &missing);
  Find(library, "ncclRecv", &table.receive, &missing);
  Find(library, "ncclGetErrorString", &table.get_error_string, &missing);
  Find(library, "ncclGetLastError", &table.get_last_error, &missing);

  if (!missing.empty()) return Status(ErrorId::kCollectiveFailed, "libnccl.so.2 has no " + missing);
  return table;
}

}  // namespace

Result<const NcclTable*> LoadNccl() {
  static const Result<NcclTable> loaded = Load();
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

void* NonBlockingConfig() {
  static ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return &config;
}

#else

Result<const NcclTable*> LoadNccl() {
  return Status(ErrorId::kCollectiveFailed, "this trainer was built without NCCL");
}

void* NonBlockingConfig() {
  return nullptr;
}

#endif

}  // namespace tidepool::trainer
