#include "memserver/probe/measure_rates.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "base/text/json_writer.h"
#include "base/unique_fd.h"
#include "optim/adam_stream.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "optim/undo_tile.h"
#include "optim/update_rule.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kCopyBytes = 4 * kMiB;                // of one copy: a chunk of a small model
constexpr uint64_t kUpdateElements = 64 * 1024;          // of one update: a tile of a chunk
constexpr uint64_t kUpdateBytes = 16 * kUpdateElements;  // fp32 planes, 16-bit gradient and copy
constexpr double kGiga = 1e9;

// Repeated work; returns the amount done: bytes or elements.
using Work = std::function<uint64_t()>;

// The amount that all of `works` do per second together, each on a thread of its own, in one
// window.
double RateOf(const std::vector<Work>& works, int64_t window_ns, const Clock& clock) {
  std::barrier start(static_cast<ptrdiff_t>(works.size()));
  std::vector<double> rates(works.size(), 0);
  const auto run = [&](size_t i) {
    works[i]();  // to warm caches and streams
    start.arrive_and_wait();

    const int64_t begin = clock.NowNs();
    uint64_t done = 0;
    int64_t now = begin;
    do {
      done += works[i]();
      now = clock.NowNs();
    } while (now - begin < window_ns);
    rates[i] = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, now - begin));
  };

  std::vector<std::thread> threads;
  for (size_t i = 1; i < works.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();

  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum * kNsPerSecond / kGiga;
}

// One rank's setup at its device: host memory that the device reaches, device memory, a stream.
class DeviceProbe {
 public:
  // `bytes` of each memory, a multiple of kCopyBytes.
  static Result<std::unique_ptr<DeviceProbe>> Open(device::Device* device, uint64_t bytes) {
    std::unique_ptr<DeviceProbe> probe(new DeviceProbe(bytes));
    TP_ASSIGN_OR_RETURN(probe->registered_, device->Register(probe->host_.get(), bytes));
    TP_ASSIGN_OR_RETURN(probe->memory_, device->CreateExportable(bytes, &probe->exported_));
    TP_ASSIGN_OR_RETURN(probe->stream_, device->OpenStream());
    return probe;
  }

  // Operations in flight use the memory.
  ~DeviceProbe() {
    if (!under_way_.empty()) stream_->Synchronize(under_way_.back());
  }

  // Each copy uses other bytes than the one before.
  uint64_t Copy(bool to_device) {
    KeepBusy([&] {
      std::byte* const host = host_.get() + at_;
      std::byte* const own = memory_->data() + at_;
      to_device ? stream_->Copy(own, host, kCopyBytes) : stream_->Copy(host, own, kCopyBytes);
      at_ = (at_ + kCopyBytes) % bytes_;
    });
    return kCopyBytes;
  }

  // One step of Adam over the device's memory, in the layout of a 16-bit chunk's states.
  uint64_t Update() {
    const uint64_t elements = bytes_ / 16, plane = elements * sizeof(float);
    std::byte* const at = memory_->data();
    optim::UpdateSpan span{
        at, at + plane, at + 2 * plane, at + 3 * plane, DType::kBF16, at + 3 * plane + plane / 2};
    span.count = elements;
    KeepBusy([&] {
      static_cast<void>(optim::EnqueueAdam(stream_.get(), optim::MakeFactors({}, {}, {}), span));
    });
    return elements;
  }

  // The first error of the operations.
  Status status() const { return stream_->status(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlign); }
  };
  static constexpr std::align_val_t kAlign{kPageBytes};

  explicit DeviceProbe(uint64_t bytes)
      : bytes_(bytes), host_(static_cast<std::byte*>(::operator new[](bytes, kAlign))) {
    std::memset(host_.get(), 0, bytes);
  }

  // Ends one operation; the stream has kUnderWay others then, as in a job. With one at a time, half
  // of the measured time is the CPU noticing its end (an H200, 4 MiB: 29 GB/s of 53).
  template <typename Begin>
  void KeepBusy(const Begin& begin) {
    while (under_way_.size() <= kUnderWay) {
      begin();
      under_way_.push_back(stream_->Record());
    }
    stream_->Synchronize(under_way_.front());
    under_way_.pop_front();
  }

  static constexpr size_t kUnderWay = 3;
  const uint64_t bytes_;
  const std::unique_ptr<std::byte[], Free> host_;
  std::unique_ptr<device::Registration> registered_;
  UniqueFd exported_;
  std::unique_ptr<device::Memory> memory_;
  std::unique_ptr<device::Stream> stream_;
  std::deque<device::Stream::Marker> under_way_;
  uint64_t at_ = 0;
};

// The host's crash-safe update, as a worker does it, over one worker's memory.
class UpdateProbe {
 public:
  UpdateProbe(optim::IsaLevel isa, uint64_t bytes)
      : kernels_(optim::SelectKernels(isa)), memory_(bytes / kUpdateBytes * kUpdateBytes) {}

  uint64_t Update() {
    const optim::FlushDenormals mode;
    const uint64_t plane = kUpdateElements * sizeof(float);
    std::byte* const at = memory_.data() + at_;
    at_ = (at_ + kUpdateBytes) % memory_.size();

    optim::UpdateSpan span{
        at, at + plane, at + 2 * plane, at + 3 * plane, DType::kBF16, at + 3 * plane + plane / 2};
    span.count = kUpdateElements;
    const optim::GroupRun run{0, kUpdateElements, factors_};
    optim::TileUpdate update(kernels_, std::span<optim::UndoArea, 2>(areas_.get(), 2), {});
    update.Run({1, ++version_, span, {&run, 1}, &progress_});
    return kUpdateElements;
  }

 private:
  const optim::Kernels& kernels_;
  std::vector<std::byte> memory_;
  const optim::StepFactors factors_ = optim::MakeFactors({}, {}, {});
  const std::unique_ptr<optim::UndoArea[]> areas_ = std::make_unique<optim::UndoArea[]>(2);
  optim::ProgressWord progress_;
  uint64_t version_ = 0, at_ = 0;
};

double HostUpdate(const RatesTask& task, const Clock& clock) {
  const uint64_t each = std::max(task.scratch_bytes / task.workers, 2 * kUpdateBytes);
  std::vector<std::unique_ptr<UpdateProbe>> probes;
  std::vector<Work> works;
  for (uint32_t i = 0; i < task.workers; ++i) {
    probes.push_back(std::make_unique<UpdateProbe>(task.isa, each));
    works.push_back([probe = probes.back().get()] { return probe->Update(); });
  }
  return RateOf(works, task.window_ns, clock);
}

Result<MeasuredRates> WithRanks(const RatesTask& task, uint32_t ranks, const Clock& clock) {
  // Host memory and, if the device is the host, the device's.
  const uint64_t each =
      std::max(task.scratch_bytes / 2 / ranks / kCopyBytes * kCopyBytes, kCopyBytes);
  std::vector<std::unique_ptr<DeviceProbe>> probes;
  for (uint32_t i = 0; i < ranks; ++i) {
    TP_ASSIGN_OR_RETURN(auto probe, DeviceProbe::Open(task.devices[i], each));
    probes.push_back(std::move(probe));
  }

  const auto rate = [&](const std::function<uint64_t(DeviceProbe*)>& act) {
    std::vector<Work> works;
    for (const auto& probe : probes)
      works.push_back([&act, one = probe.get()] { return act(one); });
    return RateOf(works, task.window_ns, clock);
  };

  MeasuredRates rates{.ranks = ranks};
  rates.to_device_gb_per_s = rate([](DeviceProbe* probe) { return probe->Copy(true); });
  rates.from_device_gb_per_s = rate([](DeviceProbe* probe) { return probe->Copy(false); });
  if (task.devices_update)
    rates.device_update_g_elements_per_s = rate([](DeviceProbe* probe) { return probe->Update(); });
  for (const auto& probe : probes) TP_RETURN_IF_ERROR(probe->status());
  return rates;
}

}  // namespace

Result<std::vector<MeasuredRates>> MeasureRates(const RatesTask& task, const Clock& clock) {
  // Ranks share the workers, so the number of ranks does not matter.
  const double host_update = HostUpdate(task, clock);
  std::vector<MeasuredRates> all;
  for (uint32_t ranks = 1; ranks <= task.devices.size(); ++ranks) {
    if (task.ends && task.ends()) return Status(ErrorId::kStepAbandoned, "nobody wants the rates");
    TP_ASSIGN_OR_RETURN(MeasuredRates rates, WithRanks(task, ranks, clock));
    rates.host_update_g_elements_per_s = host_update;
    all.push_back(rates);
  }
  return all;
}

std::string RatesText(const std::vector<MeasuredRates>& rates, const std::string& machine,
                      const std::string& device) {
  JsonWriter json;
  json.BeginObject()
      .Field("origin", "measured by memserver on " + machine)
      .Field("machine", machine)
      .Field("device", device);
  json.Key("rates").BeginArray();

  for (const MeasuredRates& one : rates) {
    json.BeginObject().Field("ranks", one.ranks);
    json.Field("to_device_gb_per_s", one.to_device_gb_per_s)
        .Field("from_device_gb_per_s", one.from_device_gb_per_s);
    json.Field("host_update_g_elements_per_s", one.host_update_g_elements_per_s);
    if (one.device_update_g_elements_per_s > 0)
      json.Field("device_update_g_elements_per_s", one.device_update_g_elements_per_s);
    json.EndObject();
  }
  return json.EndArray().EndObject().Take() + "\n";
}

}  // namespace tidepool::memserver
