#include "base/system/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/check.h"

namespace tidepool {
namespace {

// Converts "127.0.0.1:9465" and "[::1]:9465" to socket addresses. False for any other address.
bool ReadAddress(const std::string& text, sockaddr_storage* address, socklen_t* length) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;

  const std::string host = text.substr(0, colon);
  uint16_t port = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, port);
  if (error != std::errc() || end != last) return false;

  auto* four = reinterpret_cast<sockaddr_in*>(address);
  if (inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    *length = sizeof *four;
    return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }

  auto* six = reinterpret_cast<sockaddr_in6*>(address);
  six->sin6_family = AF_INET6;
  six->sin6_port = htons(port);
  six->sin6_addr = in6addr_loopback;
  *length = sizeof *six;
  return host == "[::1]";
}

}  // namespace

bool IsLoopback(const std::string& address) {
  sockaddr_storage at{};
  socklen_t length = 0;
  return ReadAddress(address, &at, &length);
}

bool IsLoopbackName(std::string_view host) {
  if (host == "[::1]" || host.starts_with("[::1]:")) return true;
  std::string name(host.substr(0, host.find(':')));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  in_addr address{};
  return name == "localhost" || (inet_pton(AF_INET, name.c_str(), &address) == 1 &&
                                 ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET);
}

Result<UniqueFd> ListenLoopback(const std::string& address, const std::string& flag) {
  sockaddr_storage at{};
  socklen_t length = 0;
  if (!ReadAddress(address, &at, &length)) {
    return Status(ErrorId::kConfigBadValue,
                  "'" + address + "' is no address of the loopback with a port")
        .Where(flag)
        .Fix(
            "give an address like 127.0.0.1:9465; let a proxy that knows who asks serve other "
            "machines");
  }

  UniqueFd fd(socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), length) != 0 ||
      listen(fd.get(), 16) != 0) {
    return Status(ErrorId::kSocketFailed, "cannot listen on the loopback")
        .Where(flag + " " + address)
        .Why(std::strerror(errno));
  }

  return fd;
}

std::string AddressOf(const UniqueFd& listening) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  TP_CHECK(getsockname(listening.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0,
           "a listening socket has an address");

  std::array<char, INET6_ADDRSTRLEN> host{};
  if (at.ss_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&at);
    inet_ntop(AF_INET6, &six->sin6_addr, host.data(), host.size());
    return "[" + std::string(host.data()) + "]:" + std::to_string(ntohs(six->sin6_port));
  }

  const auto* four = reinterpret_cast<const sockaddr_in*>(&at);
  inet_ntop(AF_INET, &four->sin_addr, host.data(), host.size());
  return std::string(host.data()) + ":" + std::to_string(ntohs(four->sin_port));
}

}  // namespace tidepool
