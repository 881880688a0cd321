// What CudaDevice promises beyond the contract of device/device.h, on the stand-in for its driver.
#include "device/cuda/cuda_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "device/host/host_memory.h"
#include "tests/device/device_forms.h"
#include "tests/device/device_roles.h"
#include "tests/fakes/fake_cuda/fake_cuda.h"

namespace tidepool::device {
namespace cuda_device_test {

using ::testing::HasSubstr;

class CudaDeviceTest : public ::testing::Test {
 protected:
  ~CudaDeviceTest() override {
    for (const char* name :
         {"FAKE_CUDA_GPUS", "FAKE_CUDA_BYTES", "FAKE_CUDA_WITHOUT", "CUDA_VISIBLE_DEVICES"})
      unsetenv(name);
    fake_.Reset();
  }

  void Machine(const char* name, const char* value) {
    setenv(name, value, 1);
    fake_.Reset();
  }
  static std::unique_ptr<CudaDevice> Open(const CudaDeviceOptions& options = {}) {
    auto device = CudaDevice::Open(options);
    EXPECT_TRUE(device.ok()) << device.status().Format();
    return std::move(device).value();
  }
  static std::unique_ptr<Stream> Streaming(CudaDevice* device) {
    return std::move(device->OpenStream()).value();
  }
  static std::unique_ptr<Memory> Create(CudaDevice* device, uint64_t bytes,
                                        UniqueFd* fd = nullptr) {
    return std::move(device->CreateExportable(bytes, fd)).value();
  }

  fake_cuda::FakeCuda& fake_ = fake_cuda::FakeCuda::Load();
};

TEST_F(CudaDeviceTest, ListsGpusWithWhatTheyCan) {
  Machine("FAKE_CUDA_GPUS", "3");
  Machine("FAKE_CUDA_WITHOUT", "vmm");
  const auto gpus = ListGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status().Format();
  ASSERT_EQ(gpus.value().size(), 3u);
  const Gpu& last = gpus.value()[2];
  EXPECT_EQ(last.ordinal, 2);
  EXPECT_EQ(last.name, "Fake GPU");
  EXPECT_EQ(last.pci_address, "0000:f8:00.0") << "in small letters, as the topology has it";
  EXPECT_EQ(Text(last.uuid), "GPU-fafafafa-fafa-fafa-fafa-fafafafafa02");
  EXPECT_EQ(last.total_bytes, kGiB);
  EXPECT_TRUE(last.wait_value64);
  EXPECT_FALSE(last.vmm_export);
  EXPECT_TRUE(last.ipc_export);
}

TEST_F(CudaDeviceTest, AGpuIsFoundByItsUuidWhateverItsNumber) {
  Machine("FAKE_CUDA_GPUS", "3");
  const GpuUuid uuid = std::move(ListGpus()).value()[2].uuid;
  Machine("CUDA_VISIBLE_DEVICES", "2,0");
  auto device = CudaDevice::OpenByUuid(uuid);
  ASSERT_TRUE(device.ok()) << device.status().Format();
  EXPECT_EQ((*device)->ordinal(), 0);
  EXPECT_EQ((*device)->uuid(), uuid);
  EXPECT_EQ((*device)->name(), "cuda:0");
  Machine("CUDA_VISIBLE_DEVICES", "1");
  const Status status = CudaDevice::OpenByUuid(uuid).status();
  EXPECT_EQ(status.id(), ErrorId::kCudaUnavailable);
  EXPECT_THAT(status.Format(), HasSubstr("sees no GPU-fafafafa-fafa-fafa-fafa-fafafafafa02"));
  EXPECT_THAT(status.Format(), HasSubstr("it sees GPU-fafafafa-fafa-fafa-fafa-fafafafafa01"));
}

TEST_F(CudaDeviceTest, AGpuThatIsNotThereOrLacksSomethingIsNamed) {
  const auto why_not = [](const CudaDeviceOptions& options) {
    const Status status = CudaDevice::Open(options).status();
    EXPECT_EQ(status.id(), ErrorId::kCudaUnavailable);
    return status.Format();
  };
  EXPECT_THAT(why_not({.ordinal = 1}), HasSubstr("there is no GPU 1"));
  EXPECT_THAT(why_not({.ordinal = -1}), HasSubstr("the CUDA driver shows 1"));
  EXPECT_THAT(why_not({.form = ExportForm::kHost}), HasSubstr("host's form"));
  Machine("FAKE_CUDA_WITHOUT", "memops");
  EXPECT_THAT(
      why_not({}),
      HasSubstr("GPU 0 (Fake GPU) cannot be used: its streams do not wait for 64-bit flags"));
  Machine("FAKE_CUDA_WITHOUT", "vmm");
  EXPECT_THAT(why_not({.form = ExportForm::kVmm}),
              HasSubstr("cannot export memory as descriptors of allocations"));
  Machine("FAKE_CUDA_WITHOUT", "ipc");
  EXPECT_THAT(why_not({.form = ExportForm::kIpc}),
              HasSubstr("cannot export memory as CUDA IPC handles"));
  Machine("FAKE_CUDA_WITHOUT", "ipc,vmm");
  EXPECT_THAT(why_not({}), HasSubstr("exports memory in no form"));
  EXPECT_EQ(fake_.live(), 0u);
}

TEST_F(CudaDeviceTest, TheFormOfExportIsChosenAtOpenAndSaid) {
  EXPECT_EQ(Open()->export_form(), ExportForm::kVmm);
  EXPECT_EQ(Open()->form_note(), "descriptors of allocations (VMM)");
  EXPECT_EQ(Open({.form = ExportForm::kIpc})->export_form(), ExportForm::kIpc);
  EXPECT_EQ(Open({.form = ExportForm::kIpc})->form_note(), "CUDA IPC handles, as asked for");
  Machine("FAKE_CUDA_WITHOUT", "vmm");
  EXPECT_EQ(Open()->export_form(), ExportForm::kIpc);
  EXPECT_THAT(Open()->form_note(), HasSubstr("does not export descriptors of allocations"));
}

// In programs of their own, since a process starts the driver once.
TEST_F(CudaDeviceTest, ADriverThatDoesNotStartIsAReasonNotACrash) {
  const std::string library = "LD_LIBRARY_PATH=" + fake_cuda::FakeCuda::Folder();
  const auto list = [&library](std::vector<std::string> environment) {
    environment.push_back(library);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    Peer peer("", "list", {writer.get()}, environment);
    writer.Reset();
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t n; (n = read(reader.get(), part.data(), part.size())) > 0;)
      text.append(part.data(), static_cast<size_t>(n));
    peer.Succeeded();
    return text;
  };
  EXPECT_THAT(list({"FAKE_CUDA_GPUS=0"}), HasSubstr("cuInit: CUDA_ERROR_NO_DEVICE (100)"));
  EXPECT_THAT(list({"FAKE_CUDA_FAIL=cuInit:1:46"}),
              HasSubstr("cuInit: CUDA_ERROR_DEVICE_UNAVAILABLE (46)"));
  EXPECT_THAT(list({"FAKE_CUDA_GPUS=1", "CUDA_VISIBLE_DEVICES=5"}),
              HasSubstr("cuInit: CUDA_ERROR_NO_DEVICE (100)"));
  EXPECT_THAT(list({}), HasSubstr("0 GPU-fafafafa-fafa-fafa-fafa-fafafafafa00 "
                                  "0000:fa:00.0\nCUDA_DEVICE_MAX_CONNECTIONS=32\n"));
  EXPECT_THAT(list({"CUDA_DEVICE_MAX_CONNECTIONS=8"}), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=8\n"))
      << "the user knows better";
}

TEST_F(CudaDeviceTest, MemoryIsCountedAndItsLackSaysHowMuchIsThere) {
  Machine("FAKE_CUDA_BYTES", "8388608");
  for (const ExportForm form : {ExportForm::kVmm, ExportForm::kIpc}) {
    auto device = Open({.form = form});
    {
      const auto memory = Create(device.get(), 6 * kMiB);
      EXPECT_EQ(std::move(device->MemoryBytes()).value().free, 2 * kMiB);
      const Status status = device->CreateExportable(4 * kMiB, nullptr).status();
      EXPECT_EQ(status.id(), ErrorId::kDeviceMemoryShort);
      EXPECT_THAT(status.Format(),
                  HasSubstr("taking 4.00 MiB of a GPU's memory failed, the GPU's memory does not "
                            "suffice: 2.00 MiB of 8.00 MiB are free"));
    }
    EXPECT_EQ(std::move(device->MemoryBytes()).value().free, 8 * kMiB);
    EXPECT_EQ(std::move(device->MemoryBytes()).value().total, 8 * kMiB);
    EXPECT_THAT(device->CreateExportable(9 * kMiB, nullptr).status().Format(),
                HasSubstr("9.00 MiB were asked of GPU 0, it has 8.00 MiB in all"));
  }
  EXPECT_EQ(fake_.live(), 0u);
}

TEST_F(CudaDeviceTest, ItsMemoryIsNoPlaceForACpu) {
  auto device = Open();
  const auto memory = Create(device.get(), kMiB);
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
  EXPECT_FALSE(memory->is_host());
  EXPECT_EQ(write(file.get(), memory->data(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST_F(CudaDeviceTest, CopiesOfUnregisteredMemoryAreDoneAndCounted) {
  auto device = Open();
  const auto memory = Create(device.get(), kMiB);
  const auto stream = Streaming(device.get());
  const Pages pages(device.get(), kPageBytes);
  std::vector<char> text(100, 'u'), back(100, 0);
  stream->Copy(memory->data(), pages.as<char>(), 100);
  stream->Copy(pages.as<char>(), memory->data(), 100);
  stream->Copy(memory->data() + 1000, memory->data(), 100);
  EXPECT_EQ(device->unregistered_copies(), 0u);
  stream->Copy(memory->data(), text.data(), text.size());
  EXPECT_EQ(device->unregistered_copies(), 1u);
  stream->Copy(back.data(), memory->data(), back.size());
  EXPECT_EQ(device->unregistered_copies(), 2u);
  stream->Synchronize(stream->Record());
  EXPECT_TRUE(stream->status().ok());
  EXPECT_EQ(back, text);
}

TEST_F(CudaDeviceTest, HostMemoryIsRegisteredInPiecesAndCopiesCrossThem) {
  auto device = Open({.piece_bytes = kMiB});
  const auto memory = Create(device.get(), 3 * kMiB);
  const auto stream = Streaming(device.get());
  const Pages from(device.get(), 2 * kMiB + kPageBytes), to(device.get(), 3 * kMiB);
  EXPECT_EQ(fake_.Calls("cuMemHostRegister_v2"), 6u);
  const uint64_t bytes = 2 * kMiB + 1000;
  for (uint64_t i = 0; i < bytes; ++i)
    from.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7 + i / kMiB);
  stream->Copy(memory->data(), from.as<std::byte>(), bytes);
  stream->Copy(to.as<std::byte>() + 500, memory->data(), bytes);
  stream->Synchronize(stream->Record());
  EXPECT_TRUE(stream->status().ok()) << stream->status().Format();
  EXPECT_EQ(std::memcmp(from.as<char>(), to.as<char>() + 500, bytes), 0);
  EXPECT_EQ(device->unregistered_copies(), 0u);
}

TEST_F(CudaDeviceTest, HostMemoryIsRegisteredOnceForAllGpus) {
  Machine("FAKE_CUDA_GPUS", "2");
  auto first = Open(), second = Open({.ordinal = 1});
  auto pages = std::make_unique<Pages>(first.get(), kPageBytes);
  auto again = second->Register(pages->as<char>(), kPageBytes);
  ASSERT_TRUE(again.ok()) << again.status().Format();
  EXPECT_EQ(fake_.Calls("cuMemHostRegister_v2"), 1u);
  EXPECT_EQ(second->Register(pages->as<char>(), 2 * kPageBytes).status().id(), ErrorId::kCudaFailed)
      << "part of it is registered";
  first = nullptr;  // the pages stay, though the device that registered them is closed
  const auto stream = Streaming(second.get());
  stream->WriteFlag(pages->as<Flag>(), 3);
  stream->Synchronize(stream->Record());
  EXPECT_EQ(pages->as<Flag>()->load(), 3u);
  EXPECT_EQ(fake_.Calls("cuMemHostUnregister"), 0u);
  again = Status();
  pages = nullptr;
  EXPECT_EQ(fake_.Calls("cuMemHostUnregister"), 1u);
}

TEST_F(CudaDeviceTest, AFlagOutsideOfRegisteredMemoryIsAnErrorOfTheStream) {
  auto device = Open();
  alignas(64) Flag flag{0};
  for (const bool wait : {true, false}) {
    const auto stream = Streaming(device.get());
    const Stream::Marker before = stream->Record();
    if (wait) stream->WaitFlag(&flag, 1);
    if (!wait) stream->WriteFlag(&flag, 1);
    EXPECT_EQ(stream->status().id(), ErrorId::kCudaFailed);
    EXPECT_THAT(stream->status().Format(), HasSubstr("lies in no registered host memory"));
    const Stream::Marker after = stream->Record();
    EXPECT_EQ(after, before + 1);
    stream->Synchronize(after);
    EXPECT_FALSE(stream->Passed(after)) << "nothing passes after an error";
  }
  EXPECT_EQ(flag.load(), 0u);
}

TEST_F(CudaDeviceTest, AFaultOfTheGpuIsKeptAndNothingPassesAfterIt) {
  auto device = Open();
  const Pages pages(device.get(), kPageBytes);
  const auto stream = Streaming(device.get()), other = Streaming(device.get());
  Flag* const flag = pages.as<Flag>();
  auto memory = Create(device.get(), kMiB);
  stream->WaitFlag(flag, 1);
  stream->Copy(pages.as<char>() + 64, memory->data(), 8);
  const Stream::Marker marker = stream->Record();
  memory = nullptr;  // a bug: the copy is under way
  flag->store(1);
  stream->Synchronize(marker);
  EXPECT_FALSE(stream->Passed(marker));
  EXPECT_EQ(stream->status().id(), ErrorId::kCudaFailed);
  EXPECT_THAT(stream->status().Format(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
  other->Synchronize(other->Record());
  EXPECT_EQ(other->status().id(), ErrorId::kCudaFailed) << "the context is broken for all";
  EXPECT_EQ(device->OpenStream().status().id(), ErrorId::kCudaFailed);
}

TEST_F(CudaDeviceTest, AClosedStreamGoesOnWithItsWork) {
  auto device = Open();
  const Pages pages(device.get(), kPageBytes);
  Flag* const flags = pages.as<Flag>();
  {
    const auto stream = Streaming(device.get());
    stream->WaitFlag(&flags[0], 1);
    stream->WriteFlag(&flags[1], 1);
  }
  EXPECT_EQ(flags[1].load(), 0u);
  flags[0].store(1, std::memory_order_release);
  SteadyClock clock;
  const int64_t end = clock.NowNs() + 30 * kNsPerSecond;
  while (flags[1].load(std::memory_order_acquire) == 0 && clock.NowNs() < end)
    clock.SleepNs(10'000);
  EXPECT_EQ(flags[1].load(), 1u);
}

TEST_F(CudaDeviceTest, ABorrowedStreamIsUsedAndLeft) {
  auto device = Open();
  const auto owned = Streaming(device.get());
  const Pages pages(device.get(), kPageBytes);
  for (void* native : {static_cast<void*>(nullptr), CudaDevice::NativeOf(*owned)}) {
    const auto stream = device->Borrow(native);
    EXPECT_EQ(CudaDevice::NativeOf(*stream), native);
    pages.as<Flag>()->store(0);
    stream->WriteFlag(pages.as<Flag>(), 9);
    stream->Synchronize(stream->Record());
    EXPECT_EQ(pages.as<Flag>()->load(), 9u);
  }
  EXPECT_EQ(fake_.Calls("cuStreamDestroy_v2"), 0u);
}

// A peer may send any descriptor.
TEST_F(CudaDeviceTest, OnlyMemoryOfAGpuIsImported) {
  auto device = Open(), ipc = Open({.form = ExportForm::kIpc});
  const auto refused_for = [&device](const UniqueFd& fd, const std::string& reason) {
    const Status status = device->Import(fd, kMiB).status();
    EXPECT_EQ(status.id(), ErrorId::kHandshakeBad) << reason;
    EXPECT_THAT(status.Format(), HasSubstr(reason));
  };
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  refused_for(reader, "a pipe or a socket");
  refused_for(UniqueFd(), "not open");
  refused_for(UniqueFd(open("/proc", O_RDONLY | O_CLOEXEC)), "a place in a file system");
  refused_for(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "it is a file");
  refused_for(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), "the driver refuses it");
  UniqueFd host;
  ASSERT_TRUE(HostMemory::Create(kMiB, &host).ok());
  refused_for(host, "the driver refuses it");
  const auto handle = [](int seals) {
    UniqueFd fd(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(write(fd.get(), std::string(64, 'x').data(), 64), 64);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_SEAL})
    refused_for(handle(kAllSeals & ~missing), "not sealed");
  refused_for(handle(kAllSeals), "the driver refuses it");
  UniqueFd own;
  const auto memory = Create(ipc.get(), kMiB, &own);
  refused_for(own, "CUDA_ERROR_INVALID_CONTEXT (201)");
  EXPECT_EQ(fake_.live(), 2u) << "the context, and the memory above";
}

TEST_F(CudaDeviceTest, MemoryOfAnotherProcessIsImportedInItsSizeOnly) {
  auto device = Open();
  for (const char* form : {"FakeGpuVmm", "FakeGpuIpc"}) {
    Exporter exporter(form);
    ASSERT_TRUE(exporter.fd().valid());
    const Status status = device->Import(exporter.fd(), kSharedBytes + 1).status();
    EXPECT_EQ(status.id(), ErrorId::kHandshakeBad) << form << status.Format();
    auto memory = device->Import(exporter.fd(), kSharedBytes - 5);
    ASSERT_TRUE(memory.ok()) << memory.status().Format();
    EXPECT_EQ((*memory)->bytes(), kSharedBytes - 5);
    EXPECT_TRUE(exporter.End());
    const Status late = device->Import(exporter.fd(), kSharedBytes).status();
    // A descriptor of the driver holds its memory; a handle names a process that must live.
    EXPECT_EQ(late.ok(), std::string(form) == "FakeGpuVmm") << late.Format();
    EXPECT_TRUE(late.ok() || late.id() == ErrorId::kHandshakeBad);
  }
  device = nullptr;
  EXPECT_EQ(fake_.live(), 0u);
}

}  // namespace cuda_device_test
}  // namespace tidepool::device
