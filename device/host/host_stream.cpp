#include "device/host/host_stream.h"

#include "base/check.h"

namespace tidepool::device {

std::shared_ptr<Flag> PassedOf(const Stream* stream) {
  const auto* host = dynamic_cast<const HostStream*>(stream);
  TP_CHECK(host != nullptr, "streams that wait for each other are of one device");
  return host->passed();
}

}  // namespace tidepool::device
