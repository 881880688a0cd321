#include "tests/device/device_forms.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "tests/fakes/fake_cuda/fake_cuda.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::device {
namespace {

using Opened = Result<std::unique_ptr<Device>>;

Opened OnHost(const HostDeviceOptions& options) {
  return std::unique_ptr<Device>(std::make_unique<HostDevice>(options));
}

Opened OnGpu(ExportForm form) {
  auto device = CudaDevice::Open({.form = form});
  if (!device.ok()) return device.status();
  return std::unique_ptr<Device>(std::move(device).value());
}

template <ExportForm form>
Opened FakeGpu() {
  fake_cuda::FakeCuda::Load();
  return OnGpu(form);
}

}  // namespace

std::vector<Form> HostForms() {
  return {{"HostInline", false, [] { return OnHost({.clock = RealClock()}); }},
          {"HostThread", false, [] { return OnHost({.clock = RealClock(), .copy_threads = 1}); }},
          {"HostThreadThatSleepsAtOnce", false,
           [] { return OnHost({.clock = RealClock(), .copy_threads = 1, .spin_ns = 0}); }}};
}

std::vector<Form> FakeGpuForms() {
  return {{"FakeGpuVmm", true, FakeGpu<ExportForm::kVmm>},
          {"FakeGpuIpc", true, FakeGpu<ExportForm::kIpc>}};
}

std::vector<Form> RealGpuForms() {
  return {{"GpuVmm", true, [] { return OnGpu(ExportForm::kVmm); }},
          {"GpuIpc", true, [] { return OnGpu(ExportForm::kIpc); }}};
}

const Form* FormNamed(const std::string& name) {
  static const std::vector<Form> all = [] {
    std::vector<Form> forms = HostForms();
    for (const auto& more : {FakeGpuForms(), RealGpuForms()})
      forms.insert(forms.end(), more.begin(), more.end());
    return forms;
  }();
  for (const Form& form : all) {
    if (name == form.name) return &form;
  }
  return nullptr;
}

Pages::Pages(Device* device, uint64_t bytes) : data_(nullptr), bytes_(RoundUp(bytes, kPageBytes)) {
  void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) {
    status_ = Status(ErrorId::kMemoryMapFailed, "no pages for a test");
    return;
  }
  data_ = static_cast<std::byte*>(at);
  auto registered = device->Register(data_, bytes_);
  status_ = registered.status();
  if (registered.ok()) registration_ = std::move(registered).value();
}

Pages::~Pages() {
  registration_ = nullptr;
  if (data_ != nullptr) munmap(data_, bytes_);
}

Peer::Peer(const std::string& form, const std::string& role, const std::vector<int>& fds,
           const std::vector<std::string>& environment) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (size_t i = 0; i < fds.size(); ++i)
    posix_spawn_file_actions_adddup2(&actions, fds[i], kPeerFd + static_cast<int>(i));
  std::vector<std::string> words = {TIDEPOOL_DEVICE_PEER, form, role}, variables = environment;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  if (posix_spawn(&pid_, TIDEPOOL_DEVICE_PEER, &actions, nullptr, argv.data(), envp.data()) != 0)
    pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
}

Peer::~Peer() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool Peer::Succeeded() {
  int status = 0;
  const bool ended = pid_ > 0 && waitpid(pid_, &status, 0) == pid_;
  pid_ = -1;
  return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Exporter::Exporter(const std::string& form) {
  int told[2], end[2];
  if (pipe2(told, O_CLOEXEC) != 0) return;
  const UniqueFd reader(told[0]);
  UniqueFd writer(told[1]);
  if (pipe2(end, O_CLOEXEC) != 0) return;
  const UniqueFd peer_end(end[0]);
  end_ = UniqueFd(end[1]);
  peer_ = std::make_unique<Peer>(form, "export", std::vector<int>{writer.get(), peer_end.get()});
  writer.Reset();
  int number = -1;
  if (read(reader.get(), &number, sizeof number) != static_cast<ssize_t>(sizeof number)) return;
  const std::string path =
      "/proc/" + std::to_string(peer_->pid()) + "/fd/" + std::to_string(number);
  for (const int how : {O_RDWR, O_RDONLY}) {  // a handle is sealed against writing
    if (!fd_.valid()) fd_ = UniqueFd(open(path.c_str(), how | O_CLOEXEC));
  }
}

bool Exporter::End() {
  end_.Reset();
  return peer_ != nullptr && peer_->Succeeded();
}

}  // namespace tidepool::device
