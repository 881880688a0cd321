// Gpu and GpuTable: the GPUs of this node whose memory ranks bring as their rCache, opened at the
// start, or when the first such rank comes.
//
// GpuTable::Open belongs to the preparation thread; OpenAll belongs to the thread that makes the
// table, before the preparation thread starts. Either may block for long (a context takes about a
// second, registering the pool about 0.1 s/GiB), and so may driver calls of other threads
// meanwhile. A Gpu does not change once it is open and lives as long as the table: the serve loop
// then opens streams on it (gpu_streams.h). Server code knows a GPU only as a device::Device;
// GpuSource makes them, so that a test can use host devices instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/device.h"
#include "device/gpu_list.h"
#include "device/places.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {

// Who writes the `done` word of a fetch (shm/flag_pages.h): the stream behind its copy, immediately
// and without the CPU; or the serve loop, when it sees that the copy has ended. If contexts share a
// GPU in time slices, a stream's write may wait for the time slice of another process.
enum class DoneBy : uint8_t { kStream, kLoop };
const char* NameOf(DoneBy by);

// Who writes the `done` words of a GPU, and why.
struct DoneChoice {
  DoneBy by = DoneBy::kStream;
  std::string why;  // the measurement, or why there was none
};

// A GPU that a GpuSource has opened.
struct OpenedGpu {
  std::unique_ptr<device::Device> device;
  std::string form_note;                              // why its memory is exported in that form
  std::function<Result<uint64_t>()> free_bytes = {};  // free memory; none: unknown
  // Free bytes before the context was made; 0: unknown.
  uint64_t free_before = 0;
  DoneChoice done = {};
  // Measures the registration of the pool; null: not measured. Outlives the GPU.
  const Clock* clock = nullptr;
};

// Lists and opens GPUs. Errors of both: kCudaUnavailable, kCudaFailed, kDeviceMemoryShort.
struct GpuSource {
  std::function<Result<std::vector<device::Gpu>>()> list;
  std::function<Result<OpenedGpu>(const device::Gpu& gpu)> open;
  // Called once per GPU model, when its first GPU has been opened. None: as OpenedGpu says.
  std::function<DoneChoice(device::Device* device, const device::Gpu& gpu)> choose_done = {};
  const Clock* clock = nullptr;  // for each OpenedGpu
};

class Gpu {
 public:
  // Registers all of `pool`, piece by piece. A piece that the GPU does not accept is not an error:
  // copies from and to it are slow, and counted. `root_complex`: its name, if known.
  Gpu(const device::Gpu& facts, OpenedGpu opened, std::span<const std::span<std::byte>> pool,
      const std::string& root_complex = "");
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const device::Gpu& facts() const { return facts_; }
  device::Device& device() const { return *opened_.device; }
  // GPUs with the same name here share one bandwidth; a GPU whose place is unknown has a name of
  // its own.
  const std::string& root_complex() const { return root_complex_; }
  const std::string& form_note() const { return opened_.form_note; }
  const DoneChoice& done() const { return opened_.done; }
  bool fell_back() const { return opened_.device->export_form() == device::ExportForm::kIpc; }
  bool IsRegistered(const void* host) const;
  // For the serve loop: one of the streams that were opened with the GPU, while there are any, else
  // a new one. Errors: those of Device::OpenStream.
  Result<std::unique_ptr<device::Stream>> TakeStream();
  uint64_t registered_bytes() const { return registered_bytes_; }
  uint64_t pool_bytes() const { return pool_bytes_; }
  double register_seconds() const { return register_seconds_; }
  const Status& pin_failure() const { return pin_failure_; }  // the first one
  // Bytes of the GPU's memory used by this server's context and its records of the registered pool;
  // 0: unknown.
  uint64_t bytes_taken() const { return bytes_taken_; }
  uint64_t free_bytes() const { return free_bytes_; }  // when it was opened
  uint64_t FreeNow() const;                            // free bytes; 0: unknown

 private:
  struct Pinned {
    std::span<std::byte> bytes;
    std::unique_ptr<device::Registration> registration;
  };
  const device::Gpu facts_;
  const OpenedGpu opened_;
  const std::string root_complex_;
  std::vector<Pinned> pinned_;  // destroyed before the device
  std::vector<std::unique_ptr<device::Stream>> streams_;
  uint64_t pool_bytes_ = 0, registered_bytes_ = 0, bytes_taken_ = 0, free_bytes_ = 0;
  double register_seconds_ = 0;
  Status pin_failure_;
};

class GpuTable {
 public:
  // Without a source there are no GPUs. `pool`: the mapped pieces of the host pool, which outlives
  // the table. `places`: the root complex of each GPU.
  GpuTable(GpuSource source, std::vector<std::span<std::byte>> pool,
           std::vector<device::StagingPlace> places = {})
      : source_(std::move(source)), pool_(std::move(pool)), places_(std::move(places)) {}

  // Opens all GPUs. A GPU that cannot be opened is logged, and tried again when a rank brings it.
  // `in_a_hurry`: a job waits, so nothing is measured.
  void OpenAll(bool in_a_hurry);
  // Opens the GPU unless it is open. Errors: those of GpuSource, and kCudaUnavailable naming the
  // existing GPUs.
  Result<Gpu*> Open(const device::GpuUuid& uuid);

 private:
  Result<device::Gpu> Find(const device::GpuUuid& uuid) const;
  DoneChoice ChooseDone(const OpenedGpu& opened, const device::Gpu& facts);
  Result<Gpu*> OpenNew(const device::Gpu& facts);

  const GpuSource source_;
  const std::vector<std::span<std::byte>> pool_;
  const std::vector<device::StagingPlace> places_;
  std::map<device::GpuUuid, std::unique_ptr<Gpu>> open_;
  std::map<std::string, DoneBy> done_of_models_;
  bool in_a_hurry_ = false;
};

// Memory for a rank's share of states on a GPU (gpu_states.h), from the preparation thread.
struct GpuStateMemory {
  Gpu* gpu = nullptr;
  std::unique_ptr<device::Memory> memory = nullptr;
  UniqueFd exported = {};  // for the keeper
};

// What a session has in addition if its rank brought its rCache. All null if the server made the
// rCache.
struct ImportedRcache {
  Gpu* gpu = nullptr;
  // The two pages (shm/flag_pages.h), in host memory.
  std::unique_ptr<device::Memory> flags;
  std::unique_ptr<device::Registration> registered = {};  // of the flags; destroyed before them
  uint64_t flags_base = 0;
  GpuStateMemory states = {};  // if it was made for this rank
};

}  // namespace tidepool::memserver
