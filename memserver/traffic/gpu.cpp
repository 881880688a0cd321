#include "memserver/traffic/gpu.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "optim/adam_stream.h"

namespace tidepool::memserver {
namespace {

constexpr size_t kStreamsAtStart = 8;  // four for copies, two for each of two shares of states

std::string Named(const device::Gpu& gpu) {
  return gpu.name + " (" + device::Text(gpu.uuid) + ")";
}

const char* NameOf(device::ExportForm form) {
  return form == device::ExportForm::kVmm   ? "vmm"
         : form == device::ExportForm::kIpc ? "ipc"
                                            : "host";
}

std::string RootOf(const device::Gpu& gpu, std::span<const device::StagingPlace> places) {
  const auto place = std::find_if(
      places.begin(), places.end(),
      [&gpu](const device::StagingPlace& one) { return one.gpu.address == gpu.pci_address; });
  return place == places.end() ? std::string() : place->root;
}

}  // namespace

const char* NameOf(DoneBy by) {
  return by == DoneBy::kStream ? "stream" : "loop";
}

Gpu::Gpu(const device::Gpu& facts, OpenedGpu opened, std::span<const std::span<std::byte>> pool,
         const std::string& root_complex)
    : facts_(facts),
      opened_(std::move(opened)),
      root_complex_(root_complex.empty() ? device::Text(facts.uuid) : root_complex) {
  const auto now_ns = [this] { return opened_.clock == nullptr ? 0 : opened_.clock->NowNs(); };
  const int64_t begin = now_ns();
  const uint64_t free_before = opened_.free_before;

  for (const std::span<std::byte> piece : pool) {
    pool_bytes_ += piece.size();
    const int64_t piece_begin = now_ns();
    auto registration = opened_.device->Register(piece.data(), piece.size());
    if (!registration.ok()) {
      LogError("a piece of the host pool is not pinned for the GPU: its copies are slow",
               {{"gpu", opened_.device->name()},
                {"bytes", piece.size()},
                {"why", registration.status().Line()}});
      if (pin_failure_.ok()) pin_failure_ = registration.status();
      continue;
    }

    registered_bytes_ += piece.size();
    pinned_.push_back({piece, std::move(registration).value()});
    const double seconds = static_cast<double>(now_ns() - piece_begin) / kNsPerSecond;
    LogInfo("host pool pinned for the GPU", {{"gpu", opened_.device->name()},
                                             {"bytes", registered_bytes_},
                                             {"s_per_gib", seconds * static_cast<double>(kGiB) /
                                                               static_cast<double>(piece.size())}});
  }
  register_seconds_ = static_cast<double>(now_ns() - begin) / kNsPerSecond;
  // Prepared here so that the loop does not wait for it while it has sessions. Errors are reported
  // again when the kernels are requested.
  (void)optim::PrepareAdam(opened_.device.get());
  for (size_t i = 0; i < kStreamsAtStart; ++i) {
    if (auto stream = opened_.device->OpenStream(); stream.ok())
      streams_.push_back(std::move(stream).value());
  }

  free_bytes_ = FreeNow();
  if (free_before != 0) bytes_taken_ = free_before - std::min(free_before, free_bytes_);
  LogInfo("GPU opened", {{"gpu", opened_.device->name()},
                         {"name", facts_.name},
                         {"uuid", device::Text(facts_.uuid)},
                         {"form", NameOf(opened_.device->export_form())},
                         {"note", opened_.form_note},
                         {"root_complex", root_complex_},
                         {"bytes_free", free_bytes_},
                         {"done_by", NameOf(done().by)},
                         {"done_why", done().why}});
}

uint64_t Gpu::FreeNow() const {
  Result<uint64_t> free = opened_.free_bytes ? opened_.free_bytes() : Result<uint64_t>(uint64_t{0});
  return free.ok() ? *free : 0;
}

Result<std::unique_ptr<device::Stream>> Gpu::TakeStream() {
  if (streams_.empty()) return opened_.device->OpenStream();
  std::unique_ptr<device::Stream> stream = std::move(streams_.front());
  streams_.erase(streams_.begin());
  return stream;
}

bool Gpu::IsRegistered(const void* host) const {
  const auto* byte = static_cast<const std::byte*>(host);
  return std::any_of(pinned_.begin(), pinned_.end(), [byte](const Pinned& pinned) {
    return byte >= pinned.bytes.data() && byte < pinned.bytes.data() + pinned.bytes.size();
  });
}

Result<device::Gpu> GpuTable::Find(const device::GpuUuid& uuid) const {
  const Status missing(ErrorId::kCudaUnavailable,
                       "this memserver has no GPU " + device::Text(uuid));
  if (!source_.list) {
    return Status(missing)
        .Why("it was started with --gpu none")
        .Fix("start it with --gpu auto, or train on the host (--device cpu)");
  }

  auto listed = source_.list();
  if (!listed.ok())
    return Status(missing).Why(listed.status().what() +
                               (listed.status().why().empty() ? "" : ": " + listed.status().why()));

  std::string have;
  for (const device::Gpu& gpu : *listed) {
    if (gpu.uuid == uuid) return gpu;
    have += (have.empty() ? "" : ", ") + Named(gpu);
  }
  return Status(missing)
      .Why("it has " + have)
      .Fix("give memserver and trainer the same GPUs (CUDA_VISIBLE_DEVICES, or the container's)");
}

Result<Gpu*> GpuTable::Open(const device::GpuUuid& uuid) {
  if (const auto found = open_.find(uuid); found != open_.end()) return found->second.get();
  TP_ASSIGN_OR_RETURN(const device::Gpu facts, Find(uuid));
  return OpenNew(facts);
}

void GpuTable::OpenAll(bool in_a_hurry) {
  if (!source_.list) return;
  auto listed = source_.list();
  if (!listed.ok()) return;  // the log line `ready` reports it

  in_a_hurry_ = in_a_hurry;
  for (const device::Gpu& gpu : *listed) {
    auto opened = OpenNew(gpu);
    if (!opened.ok())
      LogWarn("a GPU cannot be opened now: it is tried again when a rank comes for it",
              {{"gpu", Named(gpu)}, {"why", opened.status().Line()}});
  }
  in_a_hurry_ = false;
}

Result<Gpu*> GpuTable::OpenNew(const device::Gpu& facts) {
  TP_ASSIGN_OR_RETURN(OpenedGpu opened, source_.open(facts));
  opened.done = ChooseDone(opened, facts);
  opened.clock = source_.clock;
  return open_
      .emplace(facts.uuid,
               std::make_unique<Gpu>(facts, std::move(opened), pool_, RootOf(facts, places_)))
      .first->second.get();
}

DoneChoice GpuTable::ChooseDone(const OpenedGpu& opened, const device::Gpu& facts) {
  if (!source_.choose_done) return opened.done;
  if (const auto known = done_of_models_.find(facts.name); known != done_of_models_.end())
    return {known->second, "as for the first GPU of this model"};

  if (in_a_hurry_)
    return {DoneBy::kLoop, "not measured: this server takes over jobs that wait for it"};
  DoneChoice choice = source_.choose_done(opened.device.get(), facts);
  done_of_models_[facts.name] = choice.by;
  return choice;
}

}  // namespace tidepool::memserver
