#include "bench/loops/matrix_loop.h"

#include <dlfcn.h>

#include <string>
#include <utility>

#include "base/clock.h"
#include "bench/harness/row.h"

namespace tidepool::bench {
namespace {

// Constants of cublas_api.h and library_types.h.
constexpr int kNoTranspose = 0, kBf16 = 14, kComputeF32 = 68, kDefaultAlgorithm = -1;

void Check(const char* call, int code) {
  if (code != 0)
    Die(std::string("bench_gpu: ") + call + " failed with code " + std::to_string(code));
}

}  // namespace

struct MatrixLoop::Library {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  int (*multiply)(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
                  const void* alpha, const void* a, int a_type, int lda, const void* b, int b_type,
                  int ldb, const void* beta, void* c, int c_type, int ldc, int compute,
                  int algorithm) = nullptr;
};

Result<std::unique_ptr<MatrixLoop>> MatrixLoop::Make(PlainGpu* gpu, uint64_t side) {
  void* library = nullptr;
  std::string why;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (const char* const error = library == nullptr ? dlerror() : nullptr)
      why += (why.empty() ? "" : "; ") + std::string(error);
  }

  if (library == nullptr)
    return Status(ErrorId::kCudaUnavailable, "cuBLAS cannot be loaded")
        .Why(why)
        .Fix("name its folder in LD_LIBRARY_PATH");

  auto functions = std::make_unique<Library>();
  const auto find = [library](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    return *function != nullptr;
  };

  if (!find(&functions->create, "cublasCreate_v2") ||
      !find(&functions->destroy, "cublasDestroy_v2") ||
      !find(&functions->set_stream, "cublasSetStream_v2") ||
      !find(&functions->multiply, "cublasGemmEx")) {
    return Status(ErrorId::kCudaUnavailable, "cuBLAS lacks a function of its version 12");
  }

  void* handle = nullptr;
  if (const int code = functions->create(&handle); code != 0) {
    return Status(ErrorId::kCudaFailed, "cublasCreate failed with code " + std::to_string(code));
  }
  return std::unique_ptr<MatrixLoop>(new MatrixLoop(std::move(functions), handle, gpu, side));
}

MatrixLoop::MatrixLoop(std::unique_ptr<Library> library, void* handle, PlainGpu* gpu, uint64_t side)
    : library_(std::move(library)),
      handle_(handle),
      side_(side),
      stream_(gpu->OpenStream()),
      memory_(gpu->TakeGpu(3 * 2 * side * side)) {
  Check("cublasSetStream", library_->set_stream(handle_, stream_->native()));
  stream_->Fill(memory_->data(), 3 * 2 * side * side);
}

MatrixLoop::~MatrixLoop() {
  (void)library_->destroy(handle_);
}

double MatrixLoop::Seconds(uint64_t count) {
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  const float one = 1, zero = 0;
  const int n = static_cast<int>(side_);
  const std::byte* const a = memory_->data();
  const std::byte* const b = a + 2 * side_ * side_;
  std::byte* const product = memory_->data() + 4 * side_ * side_;

  for (uint64_t i = 0; i < count; ++i) {
    Check("cublasGemmEx",
          library_->multiply(handle_, kNoTranspose, kNoTranspose, n, n, n, &one, a, kBf16, n, b,
                             kBf16, n, &zero, product, kBf16, n, kComputeF32, kDefaultAlgorithm));
  }

  stream_->Synchronize();
  return static_cast<double>(clock.NowNs() - begin) / 1e9;
}

}  // namespace tidepool::bench
