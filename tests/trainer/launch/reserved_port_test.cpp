// A port that is kept for a listener which comes later: it may listen there, again and again, and nobody else gets the port.
#include "trainer/launch/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace reserved_port_test {

// A socket bound to the port, 0 for any; invalid where that is refused.
UniqueFd Bound(uint16_t port, bool reuse) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse ? 1 : 0;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return {};
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return fd;
}

uint16_t PortOf(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

TEST(ReservedPort, MayBeListenedAtByWhoNamesIt) {
  auto reserved = ReservedPort::Take();
  ASSERT_TRUE(reserved.ok()) << reserved.status().Format();
  for (int life = 0; life < 3; ++life) {  // a rank that dies is started again
    const UniqueFd listener = Bound(reserved->port(), true);
    ASSERT_TRUE(listener.valid()) << errno;
    ASSERT_EQ(listen(listener.get(), 4), 0) << errno;
    const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    socklen_t length = sizeof address;
    ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), length), 0) << errno;
    const UniqueFd accepted(accept(listener.get(), nullptr, nullptr));
    EXPECT_TRUE(accepted.valid());
  }
}

TEST(ReservedPort, IsGivenToNobodyElse) {
  std::optional<ReservedPort> reserved = ReservedPort::Take().value();
  const uint16_t port = reserved->port();
  EXPECT_FALSE(Bound(port, false).valid());
  EXPECT_EQ(errno, EADDRINUSE);
  std::vector<UniqueFd> others;
  std::set<uint16_t> ports;
  for (int i = 0; i < 200; ++i) {
    others.push_back(Bound(0, i % 2 == 0));
    ASSERT_TRUE(others.back().valid()) << errno;
    ports.insert(PortOf(others.back()));
  }
  EXPECT_FALSE(ports.contains(port));
  EXPECT_NE(ReservedPort::Take()->port(), port);
  reserved.reset();
  EXPECT_TRUE(Bound(port, false).valid()) << "it is free again";
}

}  // namespace reserved_port_test
}  // namespace tidepool::trainer
