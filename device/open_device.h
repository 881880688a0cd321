// OpenDevice: opens a Device by its name in programs and configuration files.
//
// Any thread. The only place that knows which forms this build has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "device/host/host_device.h"

namespace tidepool::device {

// Names that OpenDevice accepts, for messages and `memserver version`.
std::vector<std::string> DeviceNames();
// Opens a device. `host` is used if `name` is "host". Errors: kUsageError (unknown name; the text
// lists the known ones).
Result<std::unique_ptr<Device>> OpenDevice(const std::string& name, const HostDeviceOptions& host);

}  // namespace tidepool::device
