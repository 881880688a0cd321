// Connection: one accepted socket of a client, and what the control thread knows about the peer.
//
// One thread (control). Private to control_server.cpp, which alone includes it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/unique_fd.h"
#include "memserver/control/handshake.h"
#include "memserver/control/peer_identity.h"

namespace tidepool::memserver {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;

// Hands the descriptor over to be watched.
inline void GiveTo(Descriptor* owner, UniqueFd fd) {
  // Throws, and closes the socket, if the system cannot watch it.
  owner->assign(fd.get());
  fd.Release();
}

struct Connection {
  Connection(asio::io_context& context, ConnectionId number, UniqueFd fd, PeerIdentity peer,
             SpecShelf* shelf)
      : protocol(number, peer.user.uid, peer.user.pid, peer.process_start, shelf),
        id(number),
        uid(peer.user.uid),
        pid(peer.user.pid),
        // What the reactor waits for.
        socket(context),
        death(context),
        limit(context),
        rest(context) {
    GiveTo(&socket, std::move(fd));
    if (peer.pidfd.valid()) GiveTo(&death, std::move(peer.pidfd));
  }
  ConnectionProtocol protocol;
  ConnectionId id;
  uint32_t uid;
  int32_t pid;
  Descriptor socket;
  Descriptor death;  // the pidfd of the process that connected
  // Bounds how long a greeting, or the door's work on a packet, may take.
  asio::steady_timer limit;
  // The pause of a user that has used up its share; its socket is read again afterwards.
  asio::steady_timer rest;
  // The next packet is left to the DescriptorDoor; nothing else is read meanwhile.
  bool at_door = false;
  // Descriptors in the order of Welcome or Resumed, from the end of preparation until sent.
  std::vector<UniqueFd> granted;
};

}  // namespace tidepool::memserver
