// PushedJob: a memserver, and a job of one rank whose rCache is this process's GPU memory.
//
// One thread; any failure ends the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "client/mem_client.h"
#include "device/cuda/cuda_device.h"

namespace tidepool::bench {

class PushedJob {
 public:
  // `flags`: additional flags of the memserver.
  PushedJob(device::CudaDevice* device, uint64_t chunk_bytes, uint64_t chunks,
            const std::vector<std::string>& flags = {})
      : shape_(ShapeOf(chunk_bytes, chunks)),
        server_(OrDie(ServerProcess::Start(FlagsOf(shape_, flags)))),
        chunk_bytes_(chunk_bytes),
        memory_(OrDie(device->CreateExportable(shape_.rcache_bytes, &exported_))) {
    client::ClientOptions options;
    options.clock = &clock_;
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

  // Moves all chunks to the GPU, all gradients from it, or both.
  void Run(bool to, bool from) {
    for (uint32_t chunk = 0; chunk < shape_.chunks; ++chunk) {
      if (to) Add(client_->StartFetch(RangeOf(chunk, 0), version_), &fetches_);
      if (from)
        Add(client_->StartSubmitGradient(RangeOf(chunk, kBlocks), version_, 0), &gradients_);
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

  // Number of the job's chunks.
  uint64_t chunks() const { return shape_.chunks; }
  // Seconds of one fetch, from the moment its copy may begin until its `done` word arrives.
  double FetchSeconds(uint32_t chunk) {
    const client::Ticket ticket = OrDie(client_->StartFetch(RangeOf(chunk, 0), version_));
    const client::TicketFlags flags = client_->FlagsOf(ticket);
    if (flags.done == nullptr)
      Die("bench_gpu: memserver gave a session with memory of a GPU no flags");

    const SteadyClock clock;
    const int64_t begin = clock.NowNs();
    flags.ready->store(flags.value, std::memory_order_release);
    while (static_cast<int64_t>(flags.done->load(std::memory_order_acquire) - flags.value) < 0) {
    }
    const int64_t end = clock.NowNs();
    OrDie(client_->Wait(ticket).status());
    return static_cast<double>(end - begin) / 1e9;
  }

 private:
  static constexpr uint64_t kBlocks = 8;  // of the rCache: chunks in flight in each direction
  static constexpr int64_t kStartNs = 300 * kNsPerSecond;

  static std::vector<std::string> FlagsOf(const JobShape& shape,
                                          const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--pool",         PoolFlagOf(shape),
                                   "--rcache-limit", std::to_string(2 * shape.rcache_bytes),
                                   "--keeper",       "none",
                                   "--log-level",    "warn"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  static JobShape ShapeOf(uint64_t chunk_bytes, uint64_t chunks) {
    JobShape shape{.name = "bench-push",
                   .chunks = static_cast<uint32_t>(chunks),
                   .chunk_elements = chunk_bytes / sizeof(float)};
    shape.rcache_bytes = 2 * kBlocks * chunk_bytes;
    return shape;
  }
  client::Range RangeOf(uint32_t chunk, uint64_t first_block) const {
    return {.chunk = chunk,
            .element_begin = 0,
            .element_count = shape_.chunk_elements,
            .rcache_offset = (first_block + chunk % kBlocks) * chunk_bytes_};
  }
  // The blocks are free and the gradients ready: only the server is waited for.
  void Add(Result<client::Ticket> started, std::deque<client::Ticket>* tickets) {
    const client::Ticket ticket = OrDie(std::move(started));
    const client::TicketFlags flags = client_->FlagsOf(ticket);
    if (flags.ready == nullptr)
      Die("bench_gpu: memserver gave a session with memory of a GPU no flags");
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
  SteadyClock clock_;
  std::unique_ptr<client::MemClient> client_;
  std::deque<client::Ticket> fetches_, gradients_;
  Version version_ = 0;
  bool submitted_ = false;
};

}  // namespace tidepool::bench
