// OpenDevice: a Device by its name, as programs and configuration files give it.
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
// `host` is used when `name` is "host". Errors: kUsageError (unknown name; the text lists the known
// ones).
Result<std::unique_ptr<Device>> OpenDevice(const std::string& name, const HostDeviceOptions& host);

}  // namespace tidepool::device
