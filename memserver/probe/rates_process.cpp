#include "memserver/probe/rates_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/system/system_memory.h"
#include "base/text/json_writer.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "device/fingerprint.h"
#include "device/gpu_list.h"
#include "device/host/host_device.h"
#include "memserver/keeper/session_spawn.h"
#include "memserver/probe/measure_rates.h"
#include "optim/adam_stream.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kHostRanksMax = 8;
// Nothing is measured unless this many times the memory is available.
constexpr uint64_t kMemoryTimes = 4;

// "machine":"..." as RatesText writes it.
std::string MachineField(const std::string& machine) {
  const std::string object =
      JsonWriter().BeginObject().Field("machine", machine).EndObject().Take();
  return object.substr(1, object.size() - 2);
}

// True if the file holds rates of this machine.
bool IsOf(const std::string& file, const std::string& machine) {
  std::ifstream in(file);
  std::stringstream text;
  if (in.is_open()) text << in.rdbuf();
  return text.str().find(MachineField(machine)) != std::string::npos;
}

Status WriteWhole(const std::string& file, const std::string& text) {
  const std::string fresh = file + ".new";
  const UniqueFd out(
      open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = out.valid() && write(out.get(), text.data(), text.size()) ==
                                          static_cast<ssize_t>(text.size());
  // Readable by everyone who may enter the directory.
  constexpr mode_t kReadable = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  if (written && fchmod(out.get(), kReadable) == 0 && rename(fresh.c_str(), file.c_str()) == 0)
    return {};
  return Status(ErrorId::kFileWriteFailed, "cannot write " + file + ": " + std::strerror(errno));
}

// Opens all GPUs; none if there are none, or if they are not to be used.
std::vector<std::unique_ptr<device::Device>> OpenGpus(bool wanted) {
  std::vector<std::unique_ptr<device::Device>> devices;
  const auto gpus =
      wanted ? device::ListGpus() : Result<std::vector<device::Gpu>>(std::vector<device::Gpu>());
  if (!gpus.ok()) return devices;
  for (const device::Gpu& gpu : gpus.value()) {
    auto opened = device::CudaDevice::OpenByUuid(gpu.uuid);
    if (opened.ok()) devices.push_back(std::move(opened).value());
  }
  return devices;
}

std::vector<std::unique_ptr<device::Device>> OpenHosts(Clock* clock) {
  const uint32_t cpus = std::clamp(std::thread::hardware_concurrency(), 1U, kHostRanksMax);
  std::vector<std::unique_ptr<device::Device>> devices;
  for (uint32_t i = 0; i < cpus; ++i)
    devices.push_back(
        std::make_unique<device::HostDevice>(device::HostDeviceOptions{.clock = clock}));
  return devices;
}

Status Measure(const RatesOrder& order, Clock* clock) {
  const std::string machine = device::MachineFingerprint();
  if (IsOf(order.file, machine)) return {};

  RatesTask task;
  const uint64_t available = ReadMemoryBudget().bytes_available;
  if (available < kMemoryTimes * task.scratch_bytes) {
    return Status(ErrorId::kHostMemoryShort,
                  "rates are not measured: " + FormatBytes(available) + " of memory are left");
  }

  std::vector<std::unique_ptr<device::Device>> devices = OpenGpus(order.gpus);
  const bool on_gpus = !devices.empty();
  if (!on_gpus) devices = OpenHosts(clock);
  for (const auto& device : devices) task.devices.push_back(device.get());
  task.devices_update = on_gpus && optim::PrepareAdam(task.devices.front()).ok();
  task.workers = order.workers;
  task.ends = [] {
    pollfd pipe{kInheritedFd, POLLIN, 0};
    return poll(&pipe, 1, 0) != 0;
  };

  TP_ASSIGN_OR_RETURN(const std::vector<MeasuredRates> rates, MeasureRates(task, *clock));
  return WriteWhole(order.file, RatesText(rates, machine, on_gpus ? "cuda" : "cpu"));
}

}  // namespace

std::vector<std::string> WordsOf(const RatesOrder& order) {
  return {order.file, std::to_string(order.workers), order.gpus ? "gpus" : "host"};
}

Result<RatesOrder> OrderOf(const std::vector<std::string>& words) {
  RatesOrder order;
  const bool whole = words.size() == 3 && (words[2] == "gpus" || words[2] == "host");
  if (whole) {
    const char* const end = words[1].data() + words[1].size();
    const auto [rest, error] = std::from_chars(words[1].data(), end, order.workers);
    order.file = words[0];
    order.gpus = words[2] == "gpus";
    if (rest == end && error == std::errc() && order.workers >= 1 && order.workers <= 256)
      return order;
  }

  return Status(ErrorId::kUsageError, "`measure-rates` is given FILE WORKERS gpus|host");
}

Status RatesProcess::Start() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return Status(ErrorId::kKeeperFailed, "no pipe for the process that measures rates")
        .Why(std::strerror(errno));
  const UniqueFd theirs(ends[0]);
  pipe_ = UniqueFd(ends[1]);

  SessionCommand command;
  command.program = OwnCommand().front();
  command.argv = WordsOf(order_);
  command.argv.insert(command.argv.begin(), {command.program, "measure-rates"});
  command.environment = EnvironmentFor(/*again=*/true);
  command.inherited_fd = theirs.get();
  TP_ASSIGN_OR_RETURN(pid_, SpawnSession(command));
  return {};
}

std::optional<bool> RatesProcess::Ended() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  pipe_.Reset();
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void RatesProcess::Stop() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  pipe_.Reset();
}

int RunMeasureRates(const RatesOrder& order, Clock* clock) {
  IsolateProcess("tp-rates", kInheritedFd);
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);
  const Status measured = Measure(order, clock);
  if (!measured.ok()) LogWarn("rates were not measured", {{"why", measured.Line()}});
  return measured.exit_code();
}

}  // namespace tidepool::memserver
