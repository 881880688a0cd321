// The other process of the tests in this folder: opens a form of Device and plays one role on it.
//   device_peer FORM write    imports kPeerFd (2 MiB) and writes a text near its end
//   device_peer FORM pass     imports kPeerFd (a block) and maps the flags of kPeerFd + 1: adds one
//                             to every byte in its turn
//   device_peer FORM export   makes 2 MiB, writes the number of its descriptor to kPeerFd, and
//                             lives until kPeerFd + 1 is closed
//   device_peer FORM list     writes to kPeerFd which GPUs there are, or why none; the form is not
//                             opened
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/gpu_list.h"
#include "device/host/host_memory.h"
#include "tests/device/device_forms.h"
#include "tests/device/device_roles.h"

namespace tidepool::device {
namespace {

Status Write(Device* device) {
  TP_ASSIGN_OR_RETURN(const auto memory, device->Import(UniqueFd(kPeerFd), kSharedBytes));
  TP_ASSIGN_OR_RETURN(const auto stream, device->OpenStream());
  const Pages text(device, kPageBytes);
  TP_RETURN_IF_ERROR(text.status());
  std::strcpy(text.as<char>(), kPeerText);
  stream->Copy(memory->data() + kSharedBytes - kPageBytes, text.as<char>(), kPageBytes);
  stream->Synchronize(stream->Record());
  return stream->status();
}

Status Pass(Device* device) {
  TP_ASSIGN_OR_RETURN(const auto block, device->Import(UniqueFd(kPeerFd), kBlockBytes));
  TP_ASSIGN_OR_RETURN(const auto flags, HostMemory::Map(UniqueFd(kPeerFd + 1), kPageBytes));
  TP_ASSIGN_OR_RETURN(const auto registration, device->Register(flags->data(), kPageBytes));
  return PassBlock(device, block->data(), flags->data(), false);
}

Status Export(Device* device) {
  UniqueFd fd;
  TP_ASSIGN_OR_RETURN(const auto memory, device->CreateExportable(kSharedBytes, &fd));
  const int number = fd.get();
  char end = 0;
  if (write(kPeerFd, &number, sizeof number) != sizeof number)
    return Status(ErrorId::kInternal, "nobody listens");
  (void)!read(kPeerFd + 1, &end, 1);
  return {};
}

Status List() {
  const auto gpus = ListGpus();
  std::string text = gpus.status().ok() ? "" : gpus.status().Format();
  for (const Gpu& gpu : gpus.ok() ? gpus.value() : std::vector<Gpu>()) {
    text += std::to_string(gpu.ordinal) + " " + Text(gpu.uuid) + " " + gpu.pci_address + "\n";
  }
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  text += "CUDA_DEVICE_MAX_CONNECTIONS=" + std::string(connections == nullptr ? "" : connections) +
          "\n";
  const bool written =
      write(kPeerFd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return written ? Status() : Status(ErrorId::kInternal, "nobody listens");
}

Status Play(const std::string& form, const std::string& role) {
  if (role == "list") return List();
  TP_ASSIGN_OR_RETURN(const auto device, FormNamed(form)->open());
  if (role == "write") return Write(device.get());
  if (role == "pass") return Pass(device.get());
  return Export(device.get());
}

}  // namespace
}  // namespace tidepool::device

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const tidepool::Status status = tidepool::device::Play(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.Format().c_str());
  return status.exit_code();
}
