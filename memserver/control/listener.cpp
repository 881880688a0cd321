#include "memserver/control/listener.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace tidepool::memserver {

namespace {
// Pause after a failed accept, so that accepting cannot become a busy loop.
constexpr int64_t kFailedPauseNs = 50 * kNsPerMs;
}  // namespace

void Listener::Watch() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (!error) AcceptWaiting();
                     });
}

void Listener::Pause(int64_t ns) {
  pause_.expires_after(std::chrono::nanoseconds(ns));
  pause_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Watch();
  });
}

void Listener::AcceptWaiting() {
  const bool slow = pace_.slow(clock_->NowNs());
  for (uint32_t i = 0; i < (slow ? AcceptPace::kAcceptsSlowly : AcceptPace::kAcceptsAtOnce); ++i) {
    auto socket = acceptor_.Next();
    if (!socket.ok()) {
      LogRefusal(socket.status());
      return Pause(kFailedPauseNs);
    }
    if (!socket->valid()) break;
    on_client_(std::move(socket).value());
  }

  slow ? Pause(AcceptPace::kPauseNs) : Watch();
}

void Listener::LogRefusal(const Status& why) {
  if (const auto left_out = refusals_.Allow(clock_->NowNs()))
    LogWarn(why.Line(), {{"left_out", *left_out}});
}

}  // namespace tidepool::memserver
