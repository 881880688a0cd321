#include "device/cuda/cuda_context.h"

#include "base/check.h"

namespace tidepool::device {
namespace {

constexpr const char* kVmmNote = "descriptors of allocations (VMM)";
constexpr const char* kIpcNote = "CUDA IPC handles";

Status Unavailable(const Gpu& gpu, const std::string& what) {
  return Status(ErrorId::kCudaUnavailable,
                "GPU " + std::to_string(gpu.ordinal) + " (" + gpu.name + ") " + what);
}

}  // namespace

Result<std::shared_ptr<CudaContext>> CudaContext::Open(const CudaDeviceOptions& options) {
  TP_CHECK(options.piece_bytes > 0, "host memory cannot be registered in pieces of nothing");
  TP_ASSIGN_OR_RETURN(const CudaDriver* cuda, CudaDriver::Load());
  int count = 0;
  TP_RETURN_IF_ERROR(cuda->Try("counting the GPUs", cuda->device_count, &count));
  if (options.ordinal < 0 || options.ordinal >= count) {
    return Status(ErrorId::kCudaUnavailable, "there is no GPU " + std::to_string(options.ordinal))
        .Why("the CUDA driver shows " + std::to_string(count) + ", counted from 0");
  }

  TP_ASSIGN_OR_RETURN(Gpu gpu, ReadGpu(*cuda, options.ordinal));
  if (!gpu.wait_value64) {
    return Unavailable(
        gpu, "cannot be used: its streams do not wait for 64-bit flags in registered host memory");
  }
  // make_shared cannot call the private constructor.
  std::shared_ptr<CudaContext> context(new CudaContext(*cuda, std::move(gpu), options.piece_bytes));
  TP_RETURN_IF_ERROR(context->Choose(options.form));
  TP_RETURN_IF_ERROR(context->Retain());
  return context;
}

Status CudaContext::Choose(const std::optional<ExportForm>& form) {
  const bool vmm = gpu_.vmm_export, ipc = gpu_.ipc_export;

  if (form) {
    if (*form == ExportForm::kHost)
      return Unavailable(gpu_, "has no memory of the host's form to export");
    if (*form == ExportForm::kVmm && !vmm)
      return Unavailable(gpu_, "cannot export memory as " + std::string(kVmmNote));
    if (*form == ExportForm::kIpc && !ipc)
      return Unavailable(gpu_, "cannot export memory as " + std::string(kIpcNote));
    form_ = *form;
    form_note_ = std::string(form_ == ExportForm::kVmm ? kVmmNote : kIpcNote) + ", as asked for";
    return {};
  }

  if (!vmm && !ipc) return Unavailable(gpu_, "exports memory in no form");
  form_ = vmm ? ExportForm::kVmm : ExportForm::kIpc;
  form_note_ = vmm ? kVmmNote
                   : std::string(kIpcNote) + ": this GPU or its driver does not export " + kVmmNote;
  return {};
}

Status CudaContext::Retain() {
  const std::string doing = "making the context of GPU " + std::to_string(gpu_.ordinal);
  TP_RETURN_IF_ERROR(cuda_.Try(doing, cuda_.device_get, &device_, gpu_.ordinal));

  CUctx_st* handle = nullptr;
  const CudaCode code = cuda_.context_retain(&handle, device_);
  if (code == kCudaDeviceUnavailable) {
    return Unavailable(gpu_, "is used by another process alone")
        .Why(cuda_.Text(cuda_.context_retain.name, code))
        .Fix("nvidia-smi -c DEFAULT");
  }
  if (code != kCudaSuccess) return cuda_.Error(doing, cuda_.context_retain.name, code);

  handle_ = handle;
  return MakeCurrent();
}

CudaContext::~CudaContext() {
  if (handle_ == nullptr) return;
  if (!kernels_.empty()) (void)MakeCurrent();
  kernels_.Unload();
  (void)cuda_.context_release(device_);
}

Status CudaContext::MakeCurrent() const {
  const CudaCode code = cuda_.context_set(handle_);
  return code == kCudaSuccess ? Status()
                              : cuda_.Error("going to GPU " + std::to_string(gpu_.ordinal),
                                            cuda_.context_set.name, code);
}

}  // namespace tidepool::device
