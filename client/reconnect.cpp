#include "client/reconnect.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"

namespace tidepool::client {

namespace {

constexpr int64_t kFirstPauseNs = 20 * kNsPerMs;
constexpr int64_t kLongestPauseNs = 500 * kNsPerMs;

// Resources that a just started server may lack briefly, while all ranks come back at once.
bool LacksForNow(ErrorId id) {
  if (TP_PLANTED("client.shortage_is_final")) return false;
  return id == ErrorId::kMemoryMapFailed || id == ErrorId::kHostMemoryShort ||
         id == ErrorId::kInternal;
}

// The time limits of an attach, over all servers that it meets: a queue ends with its server, the
// time spent in it counts on.
class Attempts {
 public:
  explicit Attempts(const ClientOptions& options)
      : options_(options), taken_(options.clock, options.attach_timeout_ns) {}

  Result<Link> Once(const std::string& path, const shm::JobSpec& spec, const RankName& who) {
    TP_ASSIGN_OR_RETURN(
        ControlChannel channel,
        ControlChannel::Open(options_.clock, path, gone_ ? 0 : options_.connect_timeout_ns));
    TP_POINT("client.connected");
    TP_ASSIGN_OR_RETURN(AttachedSession session,
                        AttachSession(&channel, spec, who, Waits(),
                                      options_.brought ? &*options_.brought : nullptr));
    IsBack();
    return Link{std::move(channel), std::move(session)};
  }

  // After a failed try: pauses and allows another one, or returns the final error.
  Status Again(const Status& failed) {
    const ErrorId id = failed.id();
    // A peer that dies while this rank attaches is no loss yet: nothing had begun.
    if ((id == ErrorId::kRankTaken || id == ErrorId::kPeerLost) && options_.attach_retry) {
      gone_.reset();
      return taken_.Pause() ? Status() : failed;
    }

    const bool lost = id == ErrorId::kServerGone || id == ErrorId::kNotReady ||
                      (gone_ && (id == ErrorId::kNoServer || LacksForNow(id)));
    if (!lost || options_.server_timeout_ns == 0) return failed;
    if (!gone_) {
      gone_.emplace(options_.clock, options_.server_timeout_ns);
      Tell(options_,
           "memserver is not ready or ended while this rank attached; waiting for it for up to " +
               FormatNs(gone_->LeftNs()));
    }
    return gone_->Pause() ? Status() : WaitedInVain(*gone_, failed);
  }

 private:
  AttachWaits Waits() {
    AttachWaits waits{.timeout_ns = options_.attach_timeout_ns};
    if (options_.queue_timeout_ns > 0)
      waits.queue_ns =
          queued_ ? std::max<int64_t>(1, queued_->LeftNs()) : options_.queue_timeout_ns;

    waits.on_queued = [this](uint32_t place, const Status& why) {
      IsBack();
      if (!queued_) queued_.emplace(options_.clock, options_.queue_timeout_ns);
      Tell(options_, "waiting for room for up to " + FormatNs(queued_->LeftNs()) + ", at place " +
                         std::to_string(place) + " of the queue: " + why.what() +
                         (why.why().empty() ? "" : " (" + why.why() + ")"));
    };
    waits.give_up = options_.give_up;
    return waits;
  }

  void IsBack() {
    if (gone_) Tell(options_, "memserver is back after " + FormatNs(gone_->WaitedNs()));
    gone_.reset();
  }

  const ClientOptions& options_;
  Patience taken_;
  std::optional<Patience> gone_;    // since the server ended
  std::optional<Patience> queued_;  // since the first queue
};

}  // namespace

Patience::Patience(Clock* clock, int64_t limit_ns)
    : clock_(clock), start_ns_(clock->NowNs()), limit_ns_(limit_ns), next_ns_(kFirstPauseNs) {}

int64_t Patience::LeftNs() const {
  return std::max<int64_t>(0, limit_ns_ - WaitedNs());
}

bool Patience::Pause() {
  const int64_t left = LeftNs();
  if (left == 0) return false;
  clock_->SleepNs(std::min(left, next_ns_));
  next_ns_ = std::min(2 * next_ns_, kLongestPauseNs);
  return true;
}

bool MayComeBack(ErrorId id) {
  switch (id) {
    case ErrorId::kNoServer:
    case ErrorId::kServerGone:
    case ErrorId::kNotReady:
    // It accepted the connection and has not answered: the limit of the whole wait decides.
    case ErrorId::kWaitTimeout:
    // All ranks come back at once, while connections of dead ranks are still open.
    case ErrorId::kTooManySessions:
    // The server has not yet noticed the end of the former connection.
    case ErrorId::kRankTaken: return true;
    default: return LacksForNow(id);
  }
}

Status WaitedInVain(const Patience& patience, const Status& last) {
  return Status(ErrorId::kServerGone, "memserver ended and has not come back within " +
                                          FormatNs(patience.WaitedNs()) + "; the job is kept")
      .Where(last.where())
      .Why("last try: " + last.what());
}

void Tell(const ClientOptions& options, const std::string& line) {
  if (options.on_wait) options.on_wait(line);
}

void MakeRoom(const ClientOptions& options, bool server_comes) {
  if (options.brought && options.brought->make_room) options.brought->make_room(server_comes);
}

Result<Link> Attach(const ClientOptions& options, const std::string& socket_dir,
                    const shm::JobSpec& spec, const RankName& who) {
  Attempts attempts(options);
  MakeRoom(options, /*server_comes=*/true);
  for (;;) {
    auto link = attempts.Once(socket_dir, spec, who);
    if (link.ok()) MakeRoom(options, /*server_comes=*/false);
    if (link.ok()) return link;
    TP_RETURN_IF_ERROR(attempts.Again(link.status()));
  }
}

Result<ReturnedLink> ComeBackOnce(Clock* clock, const std::string& socket_dir,
                                  const shm::ResumeFrame& frame, std::span<const int> memory_fds,
                                  int64_t timeout_ns) {
  TP_ASSIGN_OR_RETURN(ControlChannel channel, ControlChannel::Open(clock, socket_dir, 0));
  TP_ASSIGN_OR_RETURN(ResumedSession session,
                      ResumeSession(&channel, frame, memory_fds, timeout_ns));
  return ReturnedLink{std::move(channel), std::move(session)};
}

}  // namespace tidepool::client
