// The Adam kernel on the GPU of this machine, bit for bit against the scalar reference. (Without a
// GPU: adam_stream_test.cpp runs its body.)
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "optim/adam_stream.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "tests/optim/adam_planes.h"

namespace tidepool::optim {
namespace adam_gpu_test {

class AdamOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = device::CudaDevice::Open({});
    if (device.status().id() == ErrorId::kCudaUnavailable) {
      // tidy: allow skipped test, because it runs where there is a GPU
      GTEST_SKIP() << device.status().Format();
    }
    ASSERT_TRUE(device.ok()) << device.status().Format();
    device_ = std::move(device).value();
    stream_ = std::move(device_->OpenStream()).value();
    host_ = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    ASSERT_NE(host_, MAP_FAILED);
    registration_ = std::move(device_->Register(host_, kBytes)).value();
    UniqueFd exported;
    memory_ = std::move(device_->CreateExportable(kBytes, &exported)).value();
  }
  void TearDown() override {
    registration_.reset();
    if (host_ != nullptr) munmap(host_, kBytes);
  }

  void Sync() {
    stream_->Synchronize(stream_->Record());
    ASSERT_TRUE(stream_->status().ok()) << stream_->status().Format();
  }

  // The planes to the GPU, each `shift` bytes behind a multiple of 256 B; the update there; the
  // planes back.
  void Update(AdamPlanesOnHost* planes, uint64_t shift) {
    std::vector<std::pair<void*, uint64_t>> parts = {
        {planes->master.data(), planes->count * 4},
        {planes->momentum.data(), planes->count * 4},
        {planes->variance.data(), planes->count * 4},
        {planes->gradient.data(), planes->gradient.size()},
        {planes->param16.data(), planes->param16.size()}};
    std::vector<uint64_t> places;
    uint64_t end = 0;
    for (const auto& [data, bytes] : parts) {
      places.push_back(end + shift);
      if (bytes > 0) std::memcpy(host_ + end + shift, data, bytes);
      end = RoundUp(end + shift + bytes, 256);
    }
    ASSERT_LE(end, kBytes);
    UpdateSpan span = planes->Span();
    std::byte* const there = memory_->data();
    span.master = there + places[0];
    span.momentum = there + places[1];
    span.variance = there + places[2];
    span.gradient = there + places[3];
    if (span.param16 != nullptr) span.param16 = there + places[4];
    stream_->Copy(there, host_, end);
    const Status enqueued = EnqueueAdam(stream_.get(), planes->which.Factors(), span);
    ASSERT_TRUE(enqueued.ok()) << enqueued.Format();
    stream_->Copy(host_, there, end);
    Sync();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].second > 0) std::memcpy(parts[i].first, host_ + places[i], parts[i].second);
    }
  }

  static constexpr uint64_t kBytes = 64 * kMiB;
  std::unique_ptr<device::CudaDevice> device_;
  std::unique_ptr<device::Stream> stream_;
  std::byte* host_ = nullptr;
  std::unique_ptr<device::Registration> registration_;
  std::unique_ptr<device::Memory> memory_;
};

TEST_F(AdamOnGpu, HasTheBitsOfTheReferenceWithDenormalsFlushed) {
  FlushDenormals flush;
  for (const AdamCase& c : AllAdamCases()) {
    for (const uint64_t count :
         {uint64_t{1}, uint64_t{3}, uint64_t{4}, uint64_t{1023}, uint64_t{3'000'001}}) {
      AdamPlanesOnHost on_gpu(count, count, c);
      AdamPlanesOnHost reference = on_gpu;
      Update(&on_gpu, 0);
      SelectKernels(IsaLevel::kScalarReference).update(c.Factors(), reference.Span());
      ASSERT_TRUE(on_gpu.SameAs(reference)) << c.Name() << ", " << count << " elements";
    }
  }
}

// No vector fits anywhere.
TEST_F(AdamOnGpu, TakesPlanesThatBeginAnywhere) {
  FlushDenormals flush;
  for (const AdamCase& c : AllAdamCases()) {
    AdamPlanesOnHost on_gpu(5, 10'007, c);
    AdamPlanesOnHost reference = on_gpu;
    Update(&on_gpu, 4);
    SelectKernels(IsaLevel::kScalarReference).update(c.Factors(), reference.Span());
    ASSERT_TRUE(on_gpu.SameAs(reference)) << c.Name();
  }
}

// Where results lie below the smallest normal number, a GPU may flush before it rounds and a CPU
// after: then they differ here, and nowhere else.
TEST_F(AdamOnGpu, FlushesWhatTheHostFlushes) {
  FlushDenormals flush;
  const AdamCase c = {OptimizerRule::kAdamW, DType::kF32, false, DType::kBF16};
  AdamPlanesOnHost on_gpu(7, 1 << 20, c);
  SplitMix64 random(8);
  for (uint64_t i = 0; i < on_gpu.count; ++i) {  // around 2^-126, whatever it is multiplied by
    on_gpu.variance[i] = std::ldexp(1.0F + RandomFloat(random, 0.01F), -126);
    on_gpu.momentum[i] = std::ldexp(1.1F + RandomFloat(random, 0.02F), -126);
    on_gpu.master[i] = std::ldexp(1.0F + RandomFloat(random, 0.001F), -126);
  }
  std::fill(on_gpu.gradient.begin(), on_gpu.gradient.end(), 0);
  AdamPlanesOnHost reference = on_gpu;
  Update(&on_gpu, 0);
  SelectKernels(IsaLevel::kScalarReference).update(c.Factors(), reference.Span());
  EXPECT_TRUE(Same(on_gpu.master, reference.master));
  EXPECT_TRUE(Same(on_gpu.momentum, reference.momentum));
  EXPECT_TRUE(Same(on_gpu.variance, reference.variance));
}

}  // namespace adam_gpu_test
}  // namespace tidepool::optim
