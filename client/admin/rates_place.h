// RatesPlace: where a memserver leaves what it has measured of the machine.
//
// Any thread; pure but for looking which directory a memserver serves in.
#pragma once

#include <string>

namespace tidepool::client {

// `socket_dir`: empty: the default place.
std::string RatesPlace(const std::string& socket_dir);

}  // namespace tidepool::client
