#include "client/reconnect.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/point.h"
#include "base/units.h"

namespace tidepool::client {

namespace {

constexpr int64_t kFirstPauseNs = 20 * kNsPerMs;
constexpr int64_t kLongestPauseNs = 500 * kNsPerMs;

std::string Seconds(int64_t ns) {
  return FormatDuration(static_cast<double>(ns) / static_cast<double>(kNsPerSecond));
}

Result<Link> AttachOnce(const ClientOptions& options, const std::string& path, const shm::JobSpec& spec, const RankName& who,
                        int64_t connect_timeout_ns) {
  TP_ASSIGN_OR_RETURN(ControlChannel channel, ControlChannel::Open(path, connect_timeout_ns));
  TP_POINT("client.connected");
  TP_ASSIGN_OR_RETURN(AttachedSession session, AttachSession(&channel, spec, who, options.attach_timeout_ns));
  return Link{std::move(channel), std::move(session)};
}

}  // namespace

Patience::Patience(int64_t limit_ns) : start_ns_(clock_.NowNs()), limit_ns_(limit_ns), next_ns_(kFirstPauseNs) {}

int64_t Patience::LeftNs() const {
  return std::max<int64_t>(0, limit_ns_ - WaitedNs());
}

bool Patience::Pause() {
  const int64_t left = LeftNs();
  if (left == 0) return false;
  clock_.SleepNs(std::min(left, next_ns_));
  next_ns_ = std::min(2 * next_ns_, kLongestPauseNs);
  return true;
}

bool MayComeBack(ErrorId id) {
  switch (id) {
    case ErrorId::kNoServer:
    case ErrorId::kServerGone:
    case ErrorId::kNotReady:
    case ErrorId::kWaitTimeout:             // it took the connection and has not answered: the limit of the whole wait decides
    case ErrorId::kTooManySessions:         // all ranks come back at once, while connections of the dead are still open
    case ErrorId::kRankTaken: return true;  // the server has not noticed yet that the former connection has ended
    default: return false;
  }
}

Status WaitedInVain(const Patience& patience, const Status& last) {
  return Status(ErrorId::kServerGone, "memserver ended and has not come back within " + Seconds(patience.WaitedNs()) + "; the job is kept")
      .Where(last.where())
      .Why("last try: " + last.what());
}

void Tell(const ClientOptions& options, const std::string& line) {
  if (options.on_wait) options.on_wait(line);
}

Result<Link> Attach(const ClientOptions& options, const std::string& socket_dir, const shm::JobSpec& spec, const RankName& who) {
  Patience taken(options.attach_timeout_ns);
  std::optional<Patience> gone;
  for (;;) {
    auto link = AttachOnce(options, socket_dir, spec, who, gone ? 0 : options.connect_timeout_ns);
    if (link.ok()) {
      if (gone) Tell(options, "memserver is back after " + Seconds(gone->WaitedNs()));
      return link;
    }
    const ErrorId id = link.status().id();
    // A peer that dies while this rank attaches ends nothing yet: nothing was begun.
    if ((id == ErrorId::kRankTaken || id == ErrorId::kPeerLost) && options.attach_retry) {
      gone.reset();
      if (!taken.Pause()) return link;
      continue;
    }
    const bool lost = id == ErrorId::kServerGone || id == ErrorId::kNotReady || (gone && id == ErrorId::kNoServer);
    if (!lost || options.server_timeout_ns == 0) return link;
    if (!gone) {
      gone.emplace(options.server_timeout_ns);
      Tell(options, "memserver is not ready or ended while this rank attached; waiting for it for up to " + Seconds(gone->LeftNs()));
    }
    if (!gone->Pause()) return WaitedInVain(*gone, link.status());
  }
}

Result<ReturnedLink> ComeBackOnce(const std::string& socket_dir, const shm::ResumeFrame& frame, int rcache_fd, int64_t timeout_ns) {
  TP_ASSIGN_OR_RETURN(ControlChannel channel, ControlChannel::Open(socket_dir, 0));
  TP_ASSIGN_OR_RETURN(ResumedSession session, ResumeSession(&channel, frame, rcache_fd, timeout_ns));
  return ReturnedLink{std::move(channel), std::move(session)};
}

}  // namespace tidepool::client
