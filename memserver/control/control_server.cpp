#include "memserver/control/control_server.h"

#include <boost/system/system_error.hpp>
#include <utility>

#include "memserver/control/control_reactor.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {

Result<std::unique_ptr<ControlServer>> ControlServer::Open(const ControlOptions& options,
                                                           const ControlNeighbours& neighbours) {
  TP_ASSIGN_OR_RETURN(std::unique_ptr<DescriptorDoor> door, DescriptorDoor::Open(neighbours.clock));
  TP_ASSIGN_OR_RETURN(UniqueFd listening,
                      shm::ListenSocket(shm::DataSocketPath(options.socket_dir)));

  try {
    auto reactor = std::make_unique<ControlReactor>(options, neighbours, std::move(listening),
                                                    std::move(door));
    return std::unique_ptr<ControlServer>(new ControlServer(std::move(reactor)));
  } catch (const boost::system::system_error& error) {
    return Status(ErrorId::kSocketFailed, "the data socket cannot be served")
        .Where(options.socket_dir)
        .Why(error.what());
  }
}

ControlServer::ControlServer(std::unique_ptr<ControlReactor> reactor)
    : reactor_(std::move(reactor)) {}

ControlServer::~ControlServer() = default;

void ControlServer::Run() {
  reactor_->Run();
}

}  // namespace tidepool::memserver
