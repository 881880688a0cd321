#include "tests/fakes/fake_cuda/fake_cuda.h"

#include <dlfcn.h>

#include "base/check.h"

namespace tidepool::fake_cuda {

FakeCuda& FakeCuda::Load() {
  static FakeCuda fake;
  return fake;
}

std::string FakeCuda::Folder() {
  return TIDEPOOL_FAKE_CUDA_FOLDER;
}

FakeCuda::FakeCuda()
    : library_(dlopen((Folder() + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL)) {
  TP_CHECK(library_ != nullptr, "the stand-in for the CUDA driver is not where the build put it");
}

void* FakeCuda::Lever(const char* name) {
  void* const lever = dlsym(library_, name);
  TP_CHECK(lever != nullptr, "another libcuda.so.1 is in this process");
  return lever;
}

void FakeCuda::Reset() {
  reinterpret_cast<void (*)()>(Lever("fake_cuda_reset"))();
}

void FakeCuda::FailAt(const std::string& function, uint64_t k, int code) {
  reinterpret_cast<void (*)(const char*, uint64_t, int)>(Lever("fake_cuda_fail"))(function.c_str(),
                                                                                  k, code);
}

uint64_t FakeCuda::Calls(const std::string& function) {
  return reinterpret_cast<uint64_t (*)(const char*)>(Lever("fake_cuda_calls"))(function.c_str());
}

uint64_t FakeCuda::live() {
  return reinterpret_cast<uint64_t (*)()>(Lever("fake_cuda_live"))();
}

std::string FakeCuda::max_connections() {
  return reinterpret_cast<const char* (*)()>(Lever("fake_cuda_max_connections"))();
}

}  // namespace tidepool::fake_cuda
