#include "bench/gpu_push.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "bench/gpu_plain.h"
#include "bench/matrix_loop.h"
#include "bench/rounds.h"
#include "bench/served_job.h"
#include "bench/server_process.h"
#include "client/mem_client.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kBlocks = 8;  // of the rCache: so many chunks are in flight each way
constexpr uint64_t kMatrixSide = 8192;
constexpr uint64_t kProducts = 200;  // about 0.3 s of a GPU that does 790 TFLOP/s
constexpr int64_t kStartNs = 300 * kNsPerSecond;

// A job of one rank whose rCache is memory of the GPU.
class PushedJob {
 public:
  PushedJob(device::CudaDevice* device, uint64_t chunk_bytes, uint64_t chunks)
      : shape_(ShapeOf(chunk_bytes, chunks)),
        server_(OrDie(ServerProcess::Start({"--pool", PoolFlagOf(shape_), "--rcache-limit", std::to_string(2 * shape_.rcache_bytes),
                                            "--keeper", "none", "--log-level", "warn"}))),
        chunk_bytes_(chunk_bytes),
        memory_(OrDie(device->CreateExportable(shape_.rcache_bytes, &exported_))) {
    client::ClientOptions options;
    options.socket_dir = server_.socket_dir();
    options.connect_timeout_ns = kStartNs;
    options.spin_ns = shape_.spin_ns;
    options.brought = client::BroughtMemory{.form = static_cast<uint32_t>(device->export_form()),
                                            .uuid = device->uuid(),
                                            .descriptor = exported_.get(),
                                            .data = memory_->data(),
                                            .bytes = memory_->bytes()};
    client_ = OrDie(client::MemClient::Connect(options, SpecOf(shape_), 0));
    for (uint32_t chunk = 0; chunk < shape_.chunks; ++chunk)
      OrDie(client_->Wait(OrDie(client_->StartPutWeights(RangeOf(chunk, 0)))).status());
  }
  ~PushedJob() { OrDie(client_->Detach()); }
  PushedJob(const PushedJob&) = delete;
  PushedJob& operator=(const PushedJob&) = delete;

  // All chunks to the GPU, all gradients from it, or both.
  void Run(bool to, bool from) {
    for (uint32_t chunk = 0; chunk < shape_.chunks; ++chunk) {
      if (to) Add(client_->StartFetch(RangeOf(chunk, 0), version_), &fetches_);
      if (from) Add(client_->StartSubmitGradient(RangeOf(chunk, kBlocks), version_, 0), &gradients_);
    }
    while (!fetches_.empty()) TakeOne(&fetches_);
    while (!gradients_.empty()) TakeOne(&gradients_);
    submitted_ |= from;
  }
  // Ends the step whose gradients were submitted, and waits for its update.
  void EndStep() {
    if (!std::exchange(submitted_, false)) return;
    client::StepEnd end;
    end.version = version_;
    end.learning_rate = 1e-4F;
    version_ = OrDie(client_->Wait(OrDie(client_->StartEndStep(end)))).version;
    Run(true, false);
  }

 private:
  static JobShape ShapeOf(uint64_t chunk_bytes, uint64_t chunks) {
    JobShape shape{.name = "bench-push", .chunks = static_cast<uint32_t>(chunks), .chunk_elements = chunk_bytes / sizeof(float)};
    shape.rcache_bytes = 2 * kBlocks * chunk_bytes;
    return shape;
  }
  client::Range RangeOf(uint32_t chunk, uint64_t first_block) const {
    return {.chunk = chunk,
            .element_begin = 0,
            .element_count = shape_.chunk_elements,
            .rcache_offset = (first_block + chunk % kBlocks) * chunk_bytes_};
  }
  // The blocks are free and the gradients there: nothing but the server is waited for.
  void Add(Result<client::Ticket> started, std::deque<client::Ticket>* tickets) {
    const client::Ticket ticket = OrDie(std::move(started));
    const client::TicketFlags flags = client_->FlagsOf(ticket);
    if (flags.ready == nullptr) Die("bench_gpu: memserver gave a session with memory of a GPU no flags");
    flags.ready->store(flags.value, std::memory_order_release);
    tickets->push_back(ticket);
    if (tickets->size() == kBlocks) TakeOne(tickets);
  }
  void TakeOne(std::deque<client::Ticket>* tickets) {
    OrDie(client_->Wait(tickets->front()).status());
    tickets->pop_front();
  }

  const JobShape shape_;
  const ServerProcess server_;
  const uint64_t chunk_bytes_;
  UniqueFd exported_;
  const std::unique_ptr<device::Memory> memory_;
  std::unique_ptr<client::MemClient> client_;
  std::deque<client::Ticket> fetches_, gradients_;
  Version version_ = 0;
  bool submitted_ = false;
};

struct Way {
  const char* name;
  bool to, from;
  double target;
};

// The plain loop that a push is held against: whole chunks one behind the other, a stream each way, from memory of cuMemHostAlloc.
class PlainLoop {
 public:
  PlainLoop(const GpuSetup& setup, uint64_t bytes)
      : gpu_(*setup.device),
        to_(gpu_.OpenStream()),
        from_(gpu_.OpenStream()),
        there_(gpu_.TakeGpu(2 * bytes)),
        here_(gpu_.TakePinned(2 * bytes)),
        bytes_(bytes) {}
  void Run(uint64_t chunk, bool to, bool from) {
    for (uint64_t at = 0; at + chunk <= bytes_; at += chunk) {
      if (to) to_->Copy(there_->data() + at, here_->data() + at, chunk);
      if (from) from_->Copy(here_->data() + bytes_ + at, there_->data() + bytes_ + at, chunk);
    }
    to_->Synchronize();
    from_->Synchronize();
  }

 private:
  PlainGpu gpu_;
  const std::unique_ptr<PlainStream> to_, from_;
  const std::unique_ptr<GpuBytes> there_;
  const std::unique_ptr<PinnedBytes> here_;
  const uint64_t bytes_;
};

void MeasureChunks(const GpuSetup& setup, uint64_t chunk, PlainLoop* plain, RowPrinter* printer) {
  const uint64_t chunks = setup.copy_bytes / chunk;
  PushedJob job(setup.device, chunk, chunks);
  const double one_way = chunk >= 16 * kMiB ? 0.98 : 0.95;
  for (const Way& way :
       {Way{"to the GPU", true, false, one_way}, Way{"from the GPU", false, true, one_way}, Way{"both ways at once", true, true, 0.97}}) {
    Rounds rounds;
    rounds.AddWay([&] { job.Run(way.to, way.from); }, [&] { job.EndStep(); });
    if (plain != nullptr) rounds.AddWay([&] { plain->Run(chunk, way.to, way.from); });
    rounds.Run(setup.rounds);
    const double bytes = static_cast<double>(chunk * chunks) * (way.to && way.from ? 2 : 1);
    const std::string row = "push of " + std::to_string(chunk / kMiB) + " MiB chunks through memserver, " + way.name;
    const double rate = bytes / rounds.median(0) / 1e9;
    if (plain == nullptr) {
      printer->Add({.bench = "gpu", .row = row, .value = rate, .unit = "GB/s", .against = "", .ratio = {}, .target = {}});
      continue;
    }
    AddComparison({.bench = "gpu",
                   .row = row,
                   .value = rate,
                   .unit = "GB/s",
                   .against = "plain copies, memory of cuMemHostAlloc",
                   .ratios = rounds.Faster(0, 1),
                   .dropped = rounds.dropped(),
                   .target = way.to && way.from && chunk < 16 * kMiB ? std::nullopt : std::optional(way.target)},
                  printer);
    job.EndStep();
  }
}

// Products of this process, alone and while the server copies chunks into its memory.
void MeasureBesideProducts(const GpuSetup& setup, RowPrinter* printer) {
  PlainGpu gpu(*setup.device);
  auto made = MatrixLoop::Make(&gpu, kMatrixSide);
  if (!made.ok()) {
    std::fprintf(stderr, "bench_gpu: no row of copies beside matrix products: %s\n", made.status().Line().c_str());
    return;
  }
  MatrixLoop& products = **made;
  constexpr uint64_t kChunk = 16 * kMiB;
  PushedJob job(setup.device, kChunk, std::max<uint64_t>(1, setup.copy_bytes / kChunk));
  std::vector<double> ratios, alone;
  (void)products.Seconds(kProducts);
  for (uint64_t round = 0; round < setup.rounds; ++round) {
    alone.push_back(products.Seconds(kProducts));
    std::atomic<bool> multiplied{false};
    double beside = 0;
    std::thread multiplier([&] {
      const PlainGpu current(*setup.device);
      beside = products.Seconds(kProducts);
      multiplied.store(true, std::memory_order_release);
    });
    while (!multiplied.load(std::memory_order_acquire)) job.Run(true, false);
    multiplier.join();
    ratios.push_back(alone.back() / beside);
  }
  const double flops = static_cast<double>(kProducts) * products.FlopsEach();
  AddComparison({.bench = "gpu",
                 .row = "matrix products (bf16, 8192) while memserver copies chunks to the GPU",
                 .value = flops / Median(alone) * Median(ratios) / 1e12,
                 .unit = "TFLOP/s",
                 .against = "the same products alone",
                 .ratios = ratios,
                 .target = 0.97},
                printer);
}

}  // namespace

void MeasurePush(const GpuSetup& setup, RowPrinter* printer) {
  std::unique_ptr<PlainLoop> plain;
  if (PlainGpu::HasPinned()) {
    plain = std::make_unique<PlainLoop>(setup, setup.copy_bytes);
  } else {
    std::fprintf(stderr, "bench_gpu: this driver has no cuMemHostAlloc; pushes are held against nothing\n");
  }
  for (const uint64_t chunk : {4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    if (2 * chunk <= setup.copy_bytes) MeasureChunks(setup, chunk, plain.get(), printer);
  }
  MeasureBesideProducts(setup, printer);
}

}  // namespace tidepool::bench
