#include "device/open_device.h"

namespace tidepool::device {

std::vector<std::string> DeviceNames() {
  return {"host"};
}

Result<std::unique_ptr<Device>> OpenDevice(const std::string& name, const HostDeviceOptions& host) {
  if (name == "host") return std::unique_ptr<Device>(std::make_unique<HostDevice>(host));
  std::string known;
  for (const std::string& each : DeviceNames()) known += (known.empty() ? "" : ", ") + each;
  return Status(ErrorId::kUsageError, "no device is named '" + name + "'")
      .Fix("this build has: " + known);
}

}  // namespace tidepool::device
