// Each call of the CUDA driver fails once, with each of five codes: every failure ends in the right
// error, nothing hangs, and nothing that was taken of the driver stays.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_driver.h"
#include "optim/adam_stream.h"
#include "optim/update_rule.h"
#include "tests/device/device_forms.h"
#include "tests/device/device_roles.h"
#include "tests/fakes/fake_cuda/fake_cuda.h"

namespace tidepool::device {
namespace cuda_faults_test {

// Out of memory, device unavailable, an uncorrectable error of the memory, a contained one, an
// illegal address. The last three break the context for good.
constexpr std::array kCodes = {2, 46, 214, 226, 700};

// What lets go of something: nobody can do more than call it.
const std::set<std::string> kLettingGo = {"cuDevicePrimaryCtxRelease_v2",
                                          "cuMemFree_v2",
                                          "cuIpcCloseMemHandle",
                                          "cuMemRelease",
                                          "cuMemAddressFree",
                                          "cuMemUnmap",
                                          "cuMemHostUnregister",
                                          "cuStreamDestroy_v2",
                                          "cuEventDestroy_v2",
                                          "cuModuleUnload"};

class CudaFaults : public ::testing::TestWithParam<ExportForm> {
 protected:
  ~CudaFaults() override { fake_.Reset(); }

  // All that a server or a trainer does with a device, once. Its own memory where one process may
  // import that, the exporter's else.
  Status UseAll() {
    TP_ASSIGN_OR_RETURN(const auto device, CudaDevice::Open({.form = GetParam()}));
    TP_ASSIGN_OR_RETURN([[maybe_unused]] const DeviceBytes bytes, device->MemoryBytes());
    const Pages pages(device.get(), 2 * kPageBytes);
    TP_RETURN_IF_ERROR(pages.status());
    UniqueFd own;
    TP_ASSIGN_OR_RETURN(const auto memory, device->CreateExportable(kMiB, &own));
    const bool vmm = GetParam() == ExportForm::kVmm;
    TP_ASSIGN_OR_RETURN(const auto imported, device->Import(vmm ? own : exporter_.fd(), kMiB));
    TP_ASSIGN_OR_RETURN(const auto stream, device->OpenStream());
    TP_ASSIGN_OR_RETURN(const auto behind, device->OpenStream());
    Flag *const flag = pages.as<Flag>(), *const held = flag + 1;
    std::byte *const from = pages.as<std::byte>() + kPageBytes, *const to = from + 8;
    std::memset(from, 0x5a, 8);
    stream->WriteFlag(flag, 1);
    stream->WaitFlag(flag, 1);
    stream->WaitFlag(held, 1);  // the other one has something to wait for
    behind->WaitMarker(stream.get(), stream->Record());
    held->store(1, std::memory_order_release);
    stream->Copy(imported->data(), from, 8);
    stream->Copy(memory->data(), imported->data(), 8);
    stream->Zero(memory->data(), 4);
    stream->Copy(to, memory->data(), 8);
    (void)optim::EnqueueAdam(stream.get(), optim::MakeFactors({}, {.lr = 1e-3}, {}),
                             SpanOn(memory->data() + kPageBytes));
    const Stream::Marker first = stream->Record(), second = stream->Record();
    stream->Synchronize(first);
    const bool passed = stream->Passed(second);
    stream->Synchronize(second);
    if (stream->status().ok()) {
      EXPECT_EQ(std::memcmp(to, "\0\0\0\0\x5a\x5a\x5a\x5a", 8), 0);
      EXPECT_TRUE(stream->Passed(second));
    } else if (!passed) {
      EXPECT_FALSE(stream->Passed(second)) << "no marker passes after an error";
    }
    unregistered_ = device->unregistered_copies();
    if (!behind->status().ok()) return behind->status();
    return stream->status();
  }

  static optim::UpdateSpan SpanOn(std::byte* at) {
    optim::UpdateSpan span;
    span.master = at;
    span.momentum = at + 256;
    span.variance = at + 512;
    span.gradient = at + 768;
    span.count = 64;
    return span;
  }

  // The errors that a failing call may end in; kNone among them: it makes no difference.
  static std::set<ErrorId> Expected(const std::string& function, int code) {
    if (kLettingGo.count(function) > 0) return {ErrorId::kNone, ErrorId::kCudaFailed};
    const bool stays = code == 214 || code == 226 || code == 700;
    // The context is made current where something is let go of as well.
    if (function == "cuCtxSetCurrent")
      return {ErrorId::kNone, code == 2 ? ErrorId::kDeviceMemoryShort : ErrorId::kCudaFailed};
    // Memory that the driver does not know is copied all the same, and counted.
    if (function == "cuPointerGetAttribute") return {stays ? ErrorId::kCudaFailed : ErrorId::kNone};
    if (function == "cuDevicePrimaryCtxRetain" && code == 46) return {ErrorId::kCudaUnavailable};
    if (function == "cuMemHostRegister_v2") return {ErrorId::kCudaFailed};
    return {code == 2 ? ErrorId::kDeviceMemoryShort : ErrorId::kCudaFailed};
  }

  void FailEveryCallOf(const std::string& function, uint64_t calls) {
    for (uint64_t k = 1; k <= calls; ++k) {
      for (const int code : kCodes) {
        SCOPED_TRACE(function + " fails at its call " + std::to_string(k) + " with " +
                     std::to_string(code));
        fake_.Reset();
        fake_.FailAt(function, k, code);
        const Status status = UseAll();
        const std::set<ErrorId> expected = Expected(function, code);
        EXPECT_EQ(expected.count(status.id()), 1u) << status.Format();
        if (expected.count(ErrorId::kNone) == 0) {
          EXPECT_NE(status.Format().find("(" + std::to_string(code) + ")"), std::string::npos)
              << status.Format();
        }
        EXPECT_EQ(fake_.live(), 0u) << "something was not given back";
        ++failures_;
      }
    }
  }

  fake_cuda::FakeCuda& fake_ = fake_cuda::FakeCuda::Load();
  Exporter exporter_{"FakeGpuIpc"};
  uint64_t unregistered_ = 0, failures_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Forms, CudaFaults, ::testing::Values(ExportForm::kVmm, ExportForm::kIpc),
                         [](const auto& param) {
                           return std::string(param.param == ExportForm::kVmm ? "Vmm" : "Ipc");
                         });

TEST_P(CudaFaults, EveryCallThatFailsEndsInItsErrorAndLeaksNothing) {
  ASSERT_TRUE(exporter_.fd().valid());
  ASSERT_TRUE(CudaDriver::Load().ok());  // cuInit is called once in a process: see cuda_device_test
  fake_.Reset();
  const Status well = UseAll();
  ASSERT_TRUE(well.ok()) << well.Format();
  EXPECT_EQ(unregistered_, 0u);
  ASSERT_EQ(fake_.live(), 0u);
  std::vector<std::pair<std::string, uint64_t>> functions;
#define TIDEPOOL_FUNCTION(member, symbol, ...) \
  functions.emplace_back(#symbol, fake_.Calls(#symbol));
  TIDEPOOL_CUDA_CALLS(TIDEPOOL_FUNCTION)
#undef TIDEPOOL_FUNCTION
  uint64_t used = 0;
  for (const auto& [function, calls] : functions) {
    used += calls > 0;
    FailEveryCallOf(function, calls);
  }
  EXPECT_GE(used, GetParam() == ExportForm::kVmm ? 38u : 35u)
      << "the test passes by functions that the device calls";
  EXPECT_GT(failures_, 300u);
  EXPECT_TRUE(exporter_.End());
}

// These are called in other cases than the one above.
TEST_P(CudaFaults, ErrorsWithoutANameAndWithoutNumbersAreTold) {
  fake_.Reset();
  fake_.FailAt("cuStreamCreate", 1, 4242);
  EXPECT_NE(UseAll().Format().find("cuStreamCreate: unknown error (4242)"), std::string::npos);
  fake_.Reset();
  fake_.FailAt("cuStreamCreate", 1, 2);
  fake_.FailAt("cuMemGetInfo_v2", 2, 46);
  const Status status = UseAll();
  EXPECT_EQ(status.id(), ErrorId::kDeviceMemoryShort);
  EXPECT_EQ(status.Format().find("are free"), std::string::npos) << "the GPU did not say";
  EXPECT_EQ(fake_.live(), 0u);
}

// A driver that does not take the code says so by other codes than those above.
TEST_P(CudaFaults, CodeThatTheDriverDoesNotTakeIsToldBeforehandAndOnTheStream) {
  constexpr std::pair<const char*, int> kRefusals[] = {
      {"cuModuleLoadData", 200},    {"cuModuleLoadData", 209},
      {"cuModuleLoadData", 218},    {"cuModuleLoadData", 221},
      {"cuModuleLoadData", 222},    {"cuModuleGetFunction", 500},
      {"cuModuleGetFunction", 218}, {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 209}};
  for (const auto& [function, code] : kRefusals) {
    SCOPED_TRACE(std::string(function) + " " + std::to_string(code));
    {
      fake_.Reset();
      auto device = CudaDevice::Open({.form = GetParam()});
      ASSERT_TRUE(device.ok());
      fake_.FailAt(function, 1, code);
      const Status refused = optim::PrepareAdam(device->get());
      EXPECT_EQ(refused.id(), ErrorId::kCudaUnavailable) << refused.Format();
      EXPECT_NE(refused.Format().find("does not run on this GPU"), std::string::npos)
          << refused.Format();
      EXPECT_TRUE(optim::PrepareAdam(device->get()).ok()) << "it is tried again";
      EXPECT_EQ(fake_.Calls("cuModuleUnload"), 0u);
    }
    EXPECT_EQ(fake_.live(), 0u);
    fake_.Reset();
    fake_.FailAt(function, 1, code);
    EXPECT_EQ(UseAll().id(), ErrorId::kCudaUnavailable);
    EXPECT_EQ(fake_.live(), 0u);
  }
}

// As with a copy: the plane that leads nowhere is found when the GPU comes to it.
TEST_P(CudaFaults, AKernelOnAddressesThatLeadNowhereBreaksTheStream) {
  fake_.Reset();
  {
    auto device = CudaDevice::Open({.form = GetParam()});
    ASSERT_TRUE(device.ok());
    UniqueFd own;
    auto memory = (*device)->CreateExportable(kMiB, &own);
    auto stream = (*device)->OpenStream();
    ASSERT_TRUE(memory.ok() && stream.ok());
    optim::UpdateSpan span = SpanOn((*memory)->data());
    span.variance = (*memory)->data() + (*memory)->bytes() + kGiB;
    EXPECT_TRUE(
        optim::EnqueueAdam(stream->get(), optim::MakeFactors({}, {.lr = 1e-3}, {}), span).ok());
    const Stream::Marker marker = (*stream)->Record();
    (*stream)->Synchronize(marker);
    EXPECT_FALSE((*stream)->Passed(marker));
    EXPECT_EQ((*stream)->status().id(), ErrorId::kCudaFailed);
    EXPECT_NE((*stream)->status().Format().find("(700)"), std::string::npos)
        << (*stream)->status().Format();
  }
  EXPECT_EQ(fake_.live(), 0u);
}

}  // namespace cuda_faults_test
}  // namespace tidepool::device
