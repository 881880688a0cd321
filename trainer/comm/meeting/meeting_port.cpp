#include "trainer/comm/meeting/meeting_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "trainer/comm/meeting/patience.h"

namespace tidepool::trainer {
namespace {

// True for a socket that the kernel connected to itself, which can happen if nobody listens at a
// port in the ephemeral range.
bool ConnectedToItself(int fd) {
  sockaddr_storage ours{}, theirs{};
  socklen_t our_size = sizeof(ours), their_size = sizeof(theirs);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &our_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &their_size) == 0 &&
         our_size == their_size && std::memcmp(&ours, &theirs, our_size) == 0;
}

}  // namespace

UniqueFd ListenOnLoopback(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return {};
  }
  return fd;
}

uint16_t BoundPort(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? ntohs(address.sin_port)
             : 0;
}

bool SomebodyListens(const Rendezvous& meet) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(meet.host.c_str(), std::to_string(meet.port).c_str(), &hints, &found) != 0)
    return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);

  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const UniqueFd probe(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(probe.get(), at->ai_addr, at->ai_addrlen) == 0 && !ConnectedToItself(probe.get()))
      return true;
  }
  return false;
}

Status AwaitRanks(const Rendezvous& meet, const std::string& doing, const MissingRanks& missing) {
  constexpr int64_t kPauseNs = 50 * kNsPerMs;
  Clock* const clock = meet.clock;
  Patience::Terms terms{
      .world = meet.world, .limit_ns = meet.GatherLimitMs() * kNsPerMs, .doing = doing};
  terms.standing = meet.standing;
  terms.say = meet.say;
  Patience patience(std::move(terms), clock->NowNs());

  for (bool exactly = false;;) {
    TP_ASSIGN_OR_RETURN(const std::vector<uint32_t> ranks, missing(exactly));
    if (ranks.empty()) return {};
    if (meet.interrupted) TP_RETURN_IF_ERROR(meet.interrupted());
    const Status goes_on = patience.Wait(ranks, clock->NowNs());
    if (!goes_on.ok() && exactly) return goes_on;
    exactly = !goes_on.ok();
    if (!exactly) clock->SleepNs(kPauseNs);
  }
}

}  // namespace tidepool::trainer
