#include "client/admin/rates_place.h"

#include "shm/socket_path.h"

namespace tidepool::client {

std::string RatesPlace(const std::string& socket_dir) {
  return shm::RatesPath(socket_dir.empty() ? shm::DefaultClientDir() : socket_dir);
}

}  // namespace tidepool::client
