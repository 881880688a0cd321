// Listener: accepts the data socket's clients at a bounded pace: more slowly after a burst of
// clients that never greet, and when no descriptor is left.
//
// One thread (control). Private to control_reactor, which alone uses it.
#pragma once

#include <functional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/bounds/accept_pace.h"
#include "memserver/control/acceptor.h"
#include "memserver/control/bounds/log_limiter.h"

namespace tidepool::memserver {

class Listener {
 public:
  // `clock` and `context` outlive the listener.
  Listener(const Clock* clock, boost::asio::io_context* context, UniqueFd listening,
           std::function<void(UniqueFd)> on_client)
      : clock_(clock),
        acceptor_(listening.get()),
        socket_(*context, listening.Release()),
        pause_(*context),
        on_client_(std::move(on_client)) {}

  // Begins to accept clients.
  void Start() { Watch(); }
  // A client left without a complete greeting, or was refused.
  void NoteBroken() { pace_.NoteBroken(clock_->NowNs()); }
  // At most one line per interval.
  void LogRefusal(const Status& why);

 private:
  void Watch();
  void Pause(int64_t ns);
  void AcceptWaiting();

  const Clock* const clock_;
  Acceptor acceptor_;
  AcceptPace pace_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer pause_;
  LogLimiter refusals_{60 * kNsPerSecond};
  std::function<void(UniqueFd)> on_client_;
};

}  // namespace tidepool::memserver
