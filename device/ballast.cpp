#include "device/ballast.h"

#include <utility>

#include "base/unique_fd.h"

namespace tidepool::device {

Status Ballast::Take() {
  if (held() || bytes_ == 0) return {};
  UniqueFd exported;  // closed here: any holder of it would keep the memory
  TP_ASSIGN_OR_RETURN(memory_, device_->CreateExportable(bytes_, &exported));
  return {};
}

}  // namespace tidepool::device
