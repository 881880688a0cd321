// The forms of Device that pass the contract, by name, so that a program on the other side of a
// test opens the same one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "device/device.h"

namespace tidepool::device {

struct Form {
  const char* name;
  bool gpu;  // CudaDevice, on the stand-in for its driver or on the real one
  Result<std::unique_ptr<Device>> (*open)();
};

std::vector<Form> HostForms();
std::vector<Form> FakeGpuForms();  // tests/fakes/fake_cuda
std::vector<Form> RealGpuForms();  // open fails where there is no GPU
const Form* FormNamed(const std::string& name);

// Host memory that the device has registered; zero.
class Pages {
 public:
  Pages(Device* device, uint64_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  const Status& status() const { return status_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_;
  uint64_t bytes_;
  Status status_;
  std::unique_ptr<Registration> registration_;
};

// tests/device/device_peer.cpp as a process of its own: `role` on the form, with descriptors
// kPeerFd, kPeerFd + 1, ...
class Peer {
 public:
  Peer(const std::string& form, const std::string& role, const std::vector<int>& fds,
       const std::vector<std::string>& environment = {});
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool Succeeded();  // waits for its end
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};
inline constexpr int kPeerFd = 20;

// `device_peer FORM export`: another process that has exported 2 MiB.
class Exporter {
 public:
  explicit Exporter(const std::string& form);
  const UniqueFd& fd() const { return fd_; }  // of the memory; invalid when something failed
  bool End();                                 // the process has ended well

 private:
  UniqueFd end_, fd_;
  std::unique_ptr<Peer> peer_;
};

}  // namespace tidepool::device
