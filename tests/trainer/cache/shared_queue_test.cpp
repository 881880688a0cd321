// Streams that share the queues of a GPU: training ends, as on the host, and the start says so. On
// the stand-in for the driver, whose queues take what CUDA was not told the order of in the order
// of the calls, or in the worst one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>

#include "device/cuda/cuda_device.h"
#include "tests/fakes/fake_cuda/fake_cuda.h"
#include "tests/fakes/flag_chunk_service.h"
#include "tests/fakes/real_clock.h"
#include "tests/trainer/cache/toy_run.h"
#include "trainer/cache/ahead_pipeline.h"
#include "trainer/cache/stream_probe.h"
#include "trainer/comm/nccl/registered_host.h"

// Functions of the leak checker; null where there is none.
extern "C" {
__attribute__((weak)) void __lsan_disable();
__attribute__((weak)) void __lsan_enable();
}

namespace tidepool::trainer {
namespace shared_queue_test {

using testing::FlagChunkService;
using testing::MemoryServer;

constexpr int64_t kPatienceNs = 30 * kNsPerSecond;

class OnQueues : public ::testing::Test {
 protected:
  ~OnQueues() override {
    (void)unsetenv("FAKE_CUDA_QUEUES");
    (void)unsetenv("FAKE_CUDA_QUEUE_ORDER");
  }
  void Open(const std::string& queues, const std::string& order) {
    (void)setenv("FAKE_CUDA_QUEUES", queues.c_str(), 1);
    (void)setenv("FAKE_CUDA_QUEUE_ORDER", order.c_str(), 1);
    fake_cuda::FakeCuda::Load().Reset();
    auto device = device::CudaDevice::Open({});
    ASSERT_TRUE(device.ok()) << device.status().Format();
    device_ = std::move(device).value();
  }
  std::unique_ptr<device::CudaDevice> device_;
};

class EveryOrder : public OnQueues,
                   public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Open(std::get<0>(GetParam()), std::get<1>(GetParam())));
  }
};

INSTANTIATE_TEST_SUITE_P(Queues, EveryOrder,
                         ::testing::Combine(::testing::Values("1", "2", "3"),
                                            ::testing::Values("put", "told")),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param)) + std::get<1>(param.param);
                         });

TEST_P(EveryOrder, TrainsAsOnTheHost) {
  for (uint32_t world = 1; world <= 2; ++world) {
    SCOPED_TRACE("world " + std::to_string(world));
    ToyConfig config;
    config.model = MakeToyModel(3 + world, 6, 1);
    config.layout.world = world;
    config.layout.chunk_bytes = 192 * 4;
    config.cache.prefetch_depth = 2;
    config.steps = 3;
    config.blocks = SmallestFor(config) + 1;
    config.on_device = true;
    config.device = device_.get();
    ASSERT_NO_FATAL_FAILURE(ExpectGood(RunToy(config)));
  }
}

// One rank, three chunks in two blocks; an operator that ends when the test says so.
class OneQueue : public OnQueues {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Open("1", "told"));
    std::vector<ParameterNote> notes;
    for (int i = 0; i < 3; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
    LayoutOptions options;
    options.chunk_bytes = 64 * 4;
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<MemoryServer>(&layout_);
    service_ = std::make_unique<FlagChunkService>(
        server_.get(), testing::FlagServiceSetup{.rcache_bytes = 2 * layout_.BlockBytes(),
                                                 .alone = false,
                                                 .copy_threads = 0,
                                                 .device = device_.get()});
    words_ = RegisteredHost::Create(device_.get(), kPageBytes).value();
    compute_ = service_->OpenStream();
    device::Stream* const recycle = service_->OpenStream();
    pipeline_ = std::make_unique<AheadPipeline>(
        PipelineSetup{&layout_,
                      0,
                      service_.get(),
                      {nullptr},
                      &clock_,
                      CacheStreams{device_.get(), compute_, recycle}});
  }
  ~OneQueue() override {
    if (service_ != nullptr) service_->Leave();
  }

  device::Flag* operator_ends() { return reinterpret_cast<device::Flag*>(words_.data()); }
  std::byte* Block(uint64_t i) { return service_->attachment().rcache + i * layout_.BlockBytes(); }
  // Whether the compute stream comes to its end; the server serves meanwhile.
  bool Ends() {
    const device::Stream::Marker end = compute_->Record();
    const int64_t until_ns = clock_.NowNs() + kPatienceNs;
    bool passed = false;
    service_->Drive([&] { return (passed = compute_->Passed(end)) || clock_.NowNs() > until_ns; });
    return passed;
  }

  SteadyClock clock_;
  ChunkLayout layout_;
  std::unique_ptr<MemoryServer> server_;
  RegisteredHost words_;
  std::unique_ptr<FlagChunkService> service_;
  device::Stream* compute_ = nullptr;
  std::unique_ptr<AheadPipeline> pipeline_;
};

TEST_F(OneQueue, AFetchIntoABlockThatAnOperatorStillUsesEnds) {
  const OpId first = pipeline_->Fetch(0, Block(0), 0, {});
  ASSERT_TRUE(pipeline_->Wait(first, false).ok());
  compute_->WaitFlag(operator_ends(), 1);
  const UseMark used = pipeline_->Mark();
  const OpId second = pipeline_->Fetch(1, Block(0), 0, {first, used});
  ASSERT_TRUE(pipeline_->Wait(second, false).ok());
  operator_ends()->store(1, std::memory_order_release);
  EXPECT_TRUE(Ends());
}

TEST_F(OneQueue, AFetchBehindASubmissionEnds) {
  const OpId first = pipeline_->Fetch(0, Block(0), 0, {});
  ASSERT_TRUE(pipeline_->Wait(first, false).ok());
  compute_->WaitFlag(operator_ends(), 1);
  const OpId submitted = pipeline_->Submit(0, Block(0), 0, 0);
  const OpId second = pipeline_->Fetch(1, Block(0), 0, {submitted, 0});
  ASSERT_TRUE(pipeline_->Wait(second, false).ok());
  operator_ends()->store(1, std::memory_order_release);
  EXPECT_TRUE(Ends());
}

TEST_F(OnQueues, TheProbeSeesStreamsThatShareAQueueAndStreamsThatDoNot) {
  for (const auto& [queues, beside] :
       {std::pair{"1", false}, {"2", false}, {"3", true}, {"0", true}}) {
    SCOPED_TRACE(queues);
    ASSERT_NO_FATAL_FAILURE(Open(queues, "put"));
    std::vector<std::unique_ptr<device::Stream>> own;
    std::vector<device::Stream*> streams;
    for (int i = 0; i < 3; ++i) {
      own.push_back(std::move(device_->OpenStream()).value());
      streams.push_back(own.back().get());
    }
    const auto found = RunBesideEachOther(device_.get(), streams, RealClock());
    ASSERT_TRUE(found.ok()) << found.status().Format();
    EXPECT_EQ(found.value(), beside);
  }
}

TEST_F(OnQueues, AStreamThatFailsInTheProbeIsAnError) {
  ASSERT_NO_FATAL_FAILURE(Open("0", "put"));
  const auto a = std::move(device_->OpenStream()).value(),
             b = std::move(device_->OpenStream()).value();
  fake_cuda::FakeCuda::Load().FailAt("cuStreamWriteValue64_v2", 2, 700);
  device::Stream* const streams[] = {a.get(), b.get()};

  // The words stay until the end of the process, as a stream may still wait for them.
  if (__lsan_disable != nullptr) __lsan_disable();
  EXPECT_EQ(RunBesideEachOther(device_.get(), streams, RealClock()).status().id(),
            ErrorId::kCudaFailed);
  if (__lsan_enable != nullptr) __lsan_enable();
  fake_cuda::FakeCuda::Load().Reset();
}

}  // namespace shared_queue_test
}  // namespace tidepool::trainer
