// FormTest: a test of every form of Device: those of the host and CudaDevice on the stand-in for
// its driver; where the file is compiled for that (TIDEPOOL_REAL_GPU, label gpu), CudaDevice on the
// GPU of this machine, and skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "tests/device/device_forms.h"

namespace tidepool::device {

inline std::vector<Form> FormsToTest() {
#if TIDEPOOL_REAL_GPU
  return RealGpuForms();
#else
  std::vector<Form> forms = HostForms();
  for (const Form& form : FakeGpuForms()) forms.push_back(form);
  return forms;
#endif
}

inline std::string NameOfForm(const ::testing::TestParamInfo<Form>& param) {
  return param.param.name;
}

class FormTest : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    auto device = GetParam().open();
#if TIDEPOOL_REAL_GPU
    if (device.status().id() == ErrorId::kCudaUnavailable) {
      // tidy: allow skipped test, because it runs where there is a GPU
      GTEST_SKIP() << device.status().Format();
    }
#endif
    ASSERT_TRUE(device.ok()) << device.status().Format();
    device_ = std::move(device).value();
  }

  static constexpr int64_t kPatienceNs = 30 * kNsPerSecond;

  std::unique_ptr<Stream> Open() {
    auto stream = device_->OpenStream();
    EXPECT_TRUE(stream.ok()) << stream.status().Format();
    return std::move(stream).value();
  }

  std::unique_ptr<Memory> Create(uint64_t bytes, UniqueFd* fd = nullptr) {
    auto memory = device_->CreateExportable(bytes, fd);
    EXPECT_TRUE(memory.ok()) << memory.status().Format();
    return std::move(memory).value();
  }

  // Registered memory of the host, zero.
  template <typename T>
  std::span<T> Host(uint64_t count) {
    pages_.push_back(std::make_unique<Pages>(device_.get(), count * sizeof(T)));
    EXPECT_TRUE(pages_.back()->status().ok()) << pages_.back()->status().Format();
    return {pages_.back()->as<T>(), count};
  }
  Flag* NewFlag(uint64_t value = 0) {
    Flag* const flag = Host<Flag>(1).data();
    flag->store(value, std::memory_order_release);
    return flag;
  }

  // Memory of the device, and what is in it.
  std::byte* Block(uint64_t bytes) {
    memory_.push_back(Create(bytes));
    return memory_.back()->data();
  }
  std::byte* BlockOf(const void* content, uint64_t bytes) {
    const auto from = Host<std::byte>(bytes);
    std::memcpy(from.data(), content, bytes);
    std::byte* const block = Block(bytes);
    const auto stream = Open();
    stream->Copy(block, from.data(), bytes);
    stream->Synchronize(stream->Record());
    return block;
  }
  template <typename T>
  std::vector<T> Read(const std::byte* block, uint64_t count) {
    const auto to = Host<T>(count);
    const auto stream = Open();
    stream->Copy(to.data(), block, count * sizeof(T));
    stream->Synchronize(stream->Record());
    EXPECT_TRUE(stream->status().ok()) << stream->status().Format();
    return {to.begin(), to.end()};
  }

  // Lets all streams work, in small pieces, until `done`; false when that never happens.
  static bool Drive(std::initializer_list<Stream*> streams, const std::function<bool()>& done,
                    uint64_t bytes_max = 4096) {
    SteadyClock clock;
    const int64_t end = clock.NowNs() + kPatienceNs;
    while (!done()) {
      bool worked = false;
      for (Stream* stream : streams) worked |= stream->Progress(bytes_max);
      if (!worked) clock.SleepNs(10'000);
      if (clock.NowNs() > end) return false;
    }
    return true;
  }

  // Gives everything that could wrongly happen a chance to happen.
  static void Settle(std::initializer_list<Stream*> streams) {
    for (int i = 0; i < 20; ++i) {
      for (Stream* stream : streams) stream->Progress(kMiB);
      SteadyClock().SleepNs(kNsPerMs / 10);
    }
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<std::unique_ptr<Pages>> pages_;
};

}  // namespace tidepool::device
