// RatesPlace: the file in which a memserver stores its measurements of the machine.
//
// Any thread; pure except for finding the directory that a memserver serves in.
#pragma once

#include <string>

namespace tidepool::client {

// `socket_dir`: empty: the default directory.
std::string RatesPlace(const std::string& socket_dir);

}  // namespace tidepool::client
