// `trainer doctor`: what this machine offers for --device, and why not more; trains nothing.
#include <unistd.h>

#include <iostream>
#include <string>

#include <torch/version.h>

#include "base/clock.h"
#include "base/text/error_text.h"
#include "base/units.h"
#include "device/gpu_list.h"
#include "trainer/cli/run.h"
#include "trainer/run/run_device.h"

namespace tidepool::trainer {
namespace {

void SayGpus() {
  const auto gpus = device::ListGpus();
  if (!gpus.ok()) {
    std::cout << "gpus      none: " << gpus.status().what() << "\n";
    return;
  }

  for (const device::Gpu& gpu : gpus.value()) {
    std::cout << "gpu       cuda:" << gpu.ordinal << ", " << gpu.name << ", "
              << FormatBytes(gpu.total_bytes) << ", " << device::Text(gpu.uuid) << ", PCI "
              << gpu.pci_address << "; waits for flags: " << (gpu.wait_value64 ? "yes" : "no")
              << ", exports memory as descriptors: " << (gpu.vmm_export ? "yes" : "no")
              << ", as handles: " << (gpu.ipc_export ? "yes" : "no")
              << (gpu.mps ? ", under MPS" : "") << "\n";
  }
}

Status Look(const DeviceOptions& options) {
  SteadyClock clock;
  std::cout << "libtorch  " << TORCH_VERSION << "\n";
  SayGpus();

  TP_ASSIGN_OR_RETURN(const RankPlace place, DetectRank(ReadEnvironment(), getppid()));
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<RunDevice> device,
                      RunDevice::Open(options, place, &clock));
  std::cout << "device    " << device->description() << "\n";
  if (!device->is_gpu()) return {};
  TP_ASSIGN_OR_RETURN(const DeviceShares shares, device->Shares());
  std::cout << "memory    " << FormatBytes(shares.free) << " free of " << FormatBytes(shares.total)
            << ", with the context of this program on it\n";
  return {};
}

}  // namespace

int RunDoctor(const DeviceOptions& options) {
  const Status status = Look(options);
  if (status.ok()) return kExitOk;
  std::cerr << ErrorText(status) << "\n";
  return status.exit_code();
}

}  // namespace tidepool::trainer
