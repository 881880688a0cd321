#include "device/cuda/cuda_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/units.h"
#include "device/cuda/cuda_stream.h"

namespace tidepool::device {
namespace {

// The driver suballocates cuMemAlloc from blocks of this size, and exports whole blocks.
constexpr uint64_t kIpcUnitBytes = 2 * kMiB;
constexpr int kIpcSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

Status NotOfAGpu(const std::string& what) {
  return Status(ErrorId::kHandshakeBad,
                "the descriptor is not memory of a GPU that Tidepool made: " + what);
}

// The driver's codes for a descriptor or handle that it cannot use, in contrast to its own faults.
Status Refused(const CudaDriver& cuda, std::string_view doing, const char* call, CudaCode code) {
  constexpr std::array kRefusals = {kCudaInvalidValue, kCudaInvalidDevice, kCudaInvalidContext,
                                    kCudaMapFailed,    kCudaInvalidHandle, kCudaNotPermitted,
                                    kCudaNotSupported, kCudaUnknown};
  if (std::find(kRefusals.begin(), kRefusals.end(), code) == kRefusals.end())
    return cuda.Error(doing, call, code);
  return NotOfAGpu("the driver refuses it").Why(cuda.Text(call, code));
}

Result<ExportForm> FormOf(int fd) {
  struct stat file {};
  if (fd < 0 || fstat(fd, &file) != 0) return NotOfAGpu("it is not open");
  const auto type = file.st_mode & S_IFMT;
  if (type == S_IFIFO || type == S_IFSOCK) return NotOfAGpu("it is a pipe or a socket");
  if (type == S_IFDIR || type == S_IFBLK || type == S_IFLNK)
    return NotOfAGpu("it is a place in a file system");
  if (type != S_IFREG) return ExportForm::kVmm;  // the driver recognises its own

  struct statfs system {};
  if (fstatfs(fd, &system) != 0 || static_cast<uint64_t>(system.f_type) != TMPFS_MAGIC)
    return NotOfAGpu("it is a file");
  if (file.st_size != static_cast<off_t>(sizeof(CudaIpcHandle))) return ExportForm::kVmm;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kIpcSeals) != kIpcSeals)
    return NotOfAGpu("it holds a handle, but is not sealed against changes");
  return ExportForm::kIpc;
}

Result<UniqueFd> Seal(const CudaIpcHandle& handle) {
  UniqueFd fd(memfd_create("tidepool-ipc-handle", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || write(fd.get(), &handle, sizeof handle) != sizeof handle ||
      fcntl(fd.get(), F_ADD_SEALS, kIpcSeals) != 0) {
    return Status(ErrorId::kMemoryMapFailed, "no memfd for the handle of a GPU's memory")
        .Why(std::strerror(errno));
  }
  return fd;
}

// A handle of the driver, released at the end of its scope: mappings and exported descriptors hold
// the memory from then on.
class HeldHandle {
 public:
  explicit HeldHandle(const CudaDriver& cuda) : cuda_(cuda) {}
  ~HeldHandle() {
    if (held) (void)cuda_.vmm_release(handle);
  }
  HeldHandle(const HeldHandle&) = delete;
  HeldHandle& operator=(const HeldHandle&) = delete;

  unsigned long long handle = 0;
  bool held = false;

 private:
  const CudaDriver& cuda_;
};

Result<uint64_t> WholeUnits(const CudaContext& context, uint64_t bytes) {
  const CudaDriver& cuda = context.cuda();
  size_t unit = 0;
  const CudaAllocationTerms terms{.location = {.id = context.gpu().ordinal}};
  TP_RETURN_IF_ERROR(cuda.Try("asking for the unit of memory", cuda.vmm_granularity, &unit, &terms,
                              kCudaGranularityMinimum));
  return RoundUp(bytes, uint64_t{unit});
}

}  // namespace

CudaMemory::~CudaMemory() {
  const CudaDriver& cuda = context_->cuda();
  (void)context_->MakeCurrent();
  if (kind_ == Kind::kMapped) (void)cuda.vmm_unmap(address_, mapped_);
  if (kind_ == Kind::kMapped || kind_ == Kind::kReserved)
    (void)cuda.vmm_unreserve(address_, mapped_);
  if (kind_ == Kind::kAllocated) (void)cuda.memory_free(address_);
  if (kind_ == Kind::kOpened) (void)cuda.ipc_close(address_);
}

Result<std::unique_ptr<Memory>> CudaMemory::Create(const std::shared_ptr<CudaContext>& context,
                                                   uint64_t bytes, UniqueFd* exported) {
  if (bytes == 0) return Status(ErrorId::kMemoryMapFailed, "memory of 0 bytes was asked of a GPU");
  if (bytes > context->gpu().total_bytes) {
    return Status(ErrorId::kDeviceMemoryShort,
                  FormatBytes(bytes) + " were asked of GPU " +
                      std::to_string(context->gpu().ordinal) + ", it has " +
                      FormatBytes(context->gpu().total_bytes) + " in all");
  }

  TP_RETURN_IF_ERROR(context->MakeCurrent());
  UniqueFd fd;
  auto made = context->form() == ExportForm::kVmm ? CreateVmm(context, bytes, &fd)
                                                  : CreateIpc(context, bytes, &fd);
  if (!made.ok()) return made.status();

  std::unique_ptr<CudaMemory> memory = std::move(made).value();
  memory->bytes_ = bytes;
  TP_RETURN_IF_ERROR(memory->Zero());
  if (exported != nullptr) *exported = std::move(fd);
  return std::unique_ptr<Memory>(std::move(memory));
}

Result<std::unique_ptr<Memory>> CudaMemory::Import(const std::shared_ptr<CudaContext>& context,
                                                   const UniqueFd& exported, uint64_t bytes) {
  if (bytes == 0) return Status(ErrorId::kMemoryMapFailed, "a mapping of 0 bytes was asked for");
  TP_ASSIGN_OR_RETURN(const ExportForm form, FormOf(exported.get()));
  TP_RETURN_IF_ERROR(context->MakeCurrent());
  auto made = form == ExportForm::kVmm ? ImportVmm(context, exported.get(), bytes)
                                       : ImportIpc(context, exported.get(), bytes);
  if (!made.ok()) return made.status();
  made.value()->bytes_ = bytes;
  return std::unique_ptr<Memory>(std::move(made).value());
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::CreateVmm(
    const std::shared_ptr<CudaContext>& context, uint64_t bytes, UniqueFd* exported) {
  const CudaDriver& cuda = context->cuda();
  TP_ASSIGN_OR_RETURN(const uint64_t whole, WholeUnits(*context, bytes));
  const CudaAllocationTerms terms{.location = {.id = context->gpu().ordinal}};

  HeldHandle held(cuda);
  TP_RETURN_IF_ERROR(cuda.Try("taking " + FormatBytes(whole) + " of a GPU's memory",
                              cuda.vmm_create, &held.handle, whole, &terms, 0ull));
  held.held = true;

  int fd = -1;
  TP_RETURN_IF_ERROR(cuda.Try("exporting a GPU's memory", cuda.vmm_export, static_cast<void*>(&fd),
                              held.handle, kCudaPosixDescriptor, 0ull));
  *exported = UniqueFd(fd);
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  return Map(context, held.handle, whole, false);
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::ImportVmm(
    const std::shared_ptr<CudaContext>& context, int fd, uint64_t bytes) {
  const CudaDriver& cuda = context->cuda();
  TP_ASSIGN_OR_RETURN(const uint64_t whole, WholeUnits(*context, bytes));
  HeldHandle held(cuda);
  // The driver takes the number itself in place of a pointer.
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  const CudaCode code = cuda.vmm_import(&held.handle, number, kCudaPosixDescriptor);
  if (code != kCudaSuccess)
    return Refused(cuda, "importing a GPU's memory", cuda.vmm_import.name, code);
  held.held = true;
  return Map(context, held.handle, whole, true);
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::Map(const std::shared_ptr<CudaContext>& context,
                                                    Handle handle, uint64_t bytes, bool imported) {
  const CudaDriver& cuda = context->cuda();
  const std::string doing = "mapping " + FormatBytes(bytes) + " of a GPU's memory";
  CudaAddress address = 0;
  TP_RETURN_IF_ERROR(
      cuda.Try(doing, cuda.vmm_reserve, &address, bytes, size_t{0}, CudaAddress{0}, 0ull));
  // make_unique cannot call the private constructor.
  std::unique_ptr<CudaMemory> memory(new CudaMemory(context, Kind::kReserved, address));
  memory->mapped_ = bytes;
  const CudaCode code = cuda.vmm_map(address, bytes, size_t{0}, handle, 0ull);
  if (code != kCudaSuccess && imported) return Refused(cuda, doing, cuda.vmm_map.name, code);
  if (code != kCudaSuccess) return cuda.Error(doing, cuda.vmm_map.name, code);
  memory->kind_ = Kind::kMapped;
  const CudaAccess access{.location = {.id = context->gpu().ordinal}};
  TP_RETURN_IF_ERROR(cuda.Try(doing, cuda.vmm_access, address, bytes, &access, size_t{1}));
  return memory;
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::CreateIpc(
    const std::shared_ptr<CudaContext>& context, uint64_t bytes, UniqueFd* exported) {
  const CudaDriver& cuda = context->cuda();
  const uint64_t whole = RoundUp(bytes, kIpcUnitBytes);

  CudaAddress address = 0;
  TP_RETURN_IF_ERROR(cuda.Try("taking " + FormatBytes(whole) + " of a GPU's memory",
                              cuda.memory_alloc, &address, whole));
  std::unique_ptr<CudaMemory> memory(new CudaMemory(context, Kind::kAllocated, address));

  CudaIpcHandle handle;
  TP_RETURN_IF_ERROR(cuda.Try("exporting a GPU's memory", cuda.ipc_get, &handle, address));
  TP_ASSIGN_OR_RETURN(*exported, Seal(handle));
  return memory;
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::ImportIpc(
    const std::shared_ptr<CudaContext>& context, int fd, uint64_t bytes) {
  const CudaDriver& cuda = context->cuda();
  CudaIpcHandle handle;
  if (pread(fd, &handle, sizeof handle, 0) != sizeof handle)
    return NotOfAGpu("its handle cannot be read");

  CudaAddress address = 0, base = 0;
  const CudaCode code = cuda.ipc_open(&address, handle, kCudaIpcLazyPeerAccess);
  if (code != kCudaSuccess)
    return Refused(cuda, "importing a GPU's memory", cuda.ipc_open.name, code);
  std::unique_ptr<CudaMemory> memory(new CudaMemory(context, Kind::kOpened, address));

  size_t size = 0;
  TP_RETURN_IF_ERROR(
      cuda.Try("asking for the size of a GPU's memory", cuda.memory_range, &base, &size, address));
  const uint64_t held = size - (address - base);
  const uint64_t whole = RoundUp(bytes, kIpcUnitBytes);
  if (held < whole)
    return NotOfAGpu("it holds " + std::to_string(held) + " bytes, " + std::to_string(whole) +
                     " are needed");
  return memory;
}

Status CudaMemory::Zero() {
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, CudaStream::Open(context_));
  stream->Zero(data(), bytes_);
  stream->Synchronize(stream->Record());
  return stream->status();
}

}  // namespace tidepool::device
