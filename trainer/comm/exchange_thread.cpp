#include "trainer/comm/exchange_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/system/last_words.h"
#include "base/planted.h"
#include "base/units.h"
#include "trainer/comm/rank_sum.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kLegMagic = 0x4C45475F4C4F4F50;  // "POOL_GEL"

UniqueFd MakeEvent() {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) DieOutOf("descriptor for an event");
  return event;
}

}  // namespace

ExchangeThread::ExchangeThread(std::string group, uint32_t rank, std::vector<UniqueFd> members,
                               int64_t timeout_ms, const Clock* clock)
    : group_(std::move(group)),
      rank_(rank),
      timeout_ns_(timeout_ms * kNsPerMs),
      clock_(clock),
      changed_(MakeEvent()) {
  for (UniqueFd& socket : members) members_.push_back({std::move(socket), {}, {}});
  thread_ = std::thread([this] { Run(); });
}

ExchangeThread::~ExchangeThread() {
  GiveUp(Status(ErrorId::kCollectiveFailed, "this rank leaves the group '" + group_ + "'"));
  thread_.join();
}

uint64_t ExchangeThread::Start(SocketExchange exchange) {
  commands_.Push({std::move(exchange), {}});
  return ++started_;
}

bool ExchangeThread::Ended(uint64_t number) const {
  return complete_.load(std::memory_order_acquire) >= number ||
         failed_.load(std::memory_order_acquire);
}

Status ExchangeThread::ResultOf(uint64_t number) const {
  return complete_.load(std::memory_order_acquire) >= number ? Status() : failure_;
}

bool ExchangeThread::AwaitChange(int wait_ms) {
  pollfd polled{.fd = changed_.get(), .events = POLLIN, .revents = 0};
  if (poll(&polled, 1, wait_ms) == 0) return false;
  eventfd_t count = 0;
  eventfd_read(changed_.get(), &count);
  return true;
}

void ExchangeThread::GiveUp(const Status& why) {
  if (failed_.load(std::memory_order_acquire)) return;
  commands_.Push({{}, why});
  while (!failed_.load(std::memory_order_acquire)) AwaitChange(-1);
}

void ExchangeThread::Run() {
  pthread_setname_np(pthread_self(), "tp-exchange");
  for (;;) {
    AwaitWork();
    TakeCommands();
    for (size_t member = 0; member < members_.size() && !failed_; ++member) {
      Send(member);
      Receive(member);
    }

    EndThoseComplete();
    LookForLost();
    LookAtTheTime();
    if (failed_) return;
  }
}

// Skips unused legs and returns the current one of this direction; null: nothing to move.
const Leg* ExchangeThread::Current(size_t member, bool outward) {
  Direction& direction = outward ? members_[member].out : members_[member].in;
  for (; direction.number - oldest_ < in_work_.size(); ++direction.number) {
    const SocketExchange& exchange = in_work_[direction.number - oldest_];
    const Leg& leg = outward ? exchange.out[member] : exchange.in[member];
    if (leg.used) return &leg;
  }
  return nullptr;
}

void ExchangeThread::AwaitWork() {
  std::vector<pollfd> polled{{commands_.event_fd(), POLLIN, 0}};
  for (size_t member = 0; member < members_.size(); ++member) {
    const Member& at = members_[member];
    const bool sends = at.out.lost.empty() && Current(member, true) != nullptr;
    const bool receives = at.in.lost.empty() && MayReceive(member);
    if (!sends && !receives) continue;
    polled.push_back({at.socket.get(),
                      static_cast<int16_t>((sends ? POLLOUT : 0) | (receives ? POLLIN : 0)), 0});
  }

  int wait_ms = -1;
  if (!in_work_.empty())
    wait_ms = static_cast<int>(
        std::clamp<int64_t>((moved_ns_ + timeout_ns_ - clock_->NowNs()) / kNsPerMs + 1, 0, 60'000));
  poll(polled.data(), polled.size(), wait_ms);
}

void ExchangeThread::TakeCommands() {
  commands_.ClearEvent();
  if (!commands_.TakeAll(&taken_)) return;
  for (Command& command : taken_) {
    if (!command.give_up.ok()) return Fail(std::move(command.give_up));
    if (in_work_.empty()) moved_ns_ = clock_->NowNs();
    in_work_.push_back(std::move(command.exchange));
  }
}

void ExchangeThread::Send(size_t member) {
  Direction& out = members_[member].out;
  while (const Leg* leg = out.lost.empty() ? Current(member, true) : nullptr) {
    if (out.done == 0)
      out.header = {kLegMagic, out.number, leg->count, rank_, in_work_[out.number - oldest_].tag};

    const uint64_t of_header = std::min<uint64_t>(out.done, sizeof(Header)),
                   of_leg = out.done - of_header;
    std::array<iovec, 2> parts{
        {{reinterpret_cast<std::byte*>(&out.header) + of_header, sizeof(Header) - of_header},
         {leg->bytes + of_leg, leg->count - of_leg}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();

    const ssize_t sent =
        sendmsg(members_[member].socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
    if (sent < 0) {
      out.lost = errno == EPIPE || errno == ECONNRESET ? "has left" : std::strerror(errno);
      return;
    }

    out.done += static_cast<uint64_t>(sent);
    moved_ns_ = clock_->NowNs();
    if (out.done < sizeof(Header) + leg->count) continue;
    out.done = 0;
    ++out.number;
  }
}

// Returns false when nothing more can be read now, or ever.
bool ExchangeThread::ReceivePart(Direction* in, int socket, std::byte* to, uint64_t bytes) {
  ssize_t got = -1;
  do {
    got = recv(socket, to, bytes, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);

  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    in->lost = got == 0 || errno == ECONNRESET ? "has left" : std::strerror(errno);
    return false;
  }
  in->done += static_cast<uint64_t>(got);
  moved_ns_ = clock_->NowNs();
  return true;
}

uint64_t ExchangeThread::Room(size_t member) {
  const Direction &in = members_[member].in, &out = members_[member].out;
  const SocketExchange& exchange = in_work_[in.number - oldest_];
  if (exchange.summed.data == nullptr || out.number > in.number ||
      TP_PLANTED("comm.received_over_unsent"))
    return exchange.in[member].count;
  return out.number < in.number || out.done < sizeof(Header) ? 0 : out.done - sizeof(Header);
}

// A rank may always receive what its peer sends first, so one of two ranks always makes progress.
bool ExchangeThread::MayReceive(size_t member) {
  if (Current(member, false) == nullptr) return false;
  const uint64_t done = members_[member].in.done;
  return done < sizeof(Header) || done - sizeof(Header) < Room(member);
}

void ExchangeThread::Receive(size_t member) {
  Direction& in = members_[member].in;
  const int socket = members_[member].socket.get();
  while (in.lost.empty() && MayReceive(member)) {
    const Leg* leg = Current(member, false);

    if (in.done < sizeof(Header)) {
      if (!ReceivePart(&in, socket, reinterpret_cast<std::byte*>(&in.header) + in.done,
                       sizeof(Header) - in.done))
        return;
      if (in.done < sizeof(Header)) continue;
      if (!HeaderFits(member)) return;
    } else {
      const uint64_t of_leg = in.done - sizeof(Header);
      if (!ReceivePart(&in, socket, leg->bytes + of_leg, Room(member) - of_leg)) return;
    }

    if (in.done < sizeof(Header) + leg->count) continue;
    in.done = 0;
    ++in.number;
  }
}

// Without this check, ranks that have started different operations would read each other's bytes.
bool ExchangeThread::HeaderFits(size_t member) {
  Direction& in = members_[member].in;
  const SocketExchange& exchange = in_work_[in.number - oldest_];
  const uint64_t bytes = exchange.in[member].count;
  const Header& header = in.header;

  if (TP_PLANTED("comm.header_unchecked")) return true;
  if (header.magic == kLegMagic && header.number == in.number && header.tag == exchange.tag &&
      header.bytes == bytes && header.rank == member) {
    return true;
  }

  const auto text = [](uint64_t number, const OperationTag& tag, uint64_t count) {
    return "number " + std::to_string(number) + ", " + tag.Text() + ", has " +
           std::to_string(count) + " bytes";
  };
  in.lost = "is in another operation: its " + text(header.number, header.tag, header.bytes) +
            "; here " + text(in.number, exchange.tag, bytes);
  return false;
}

void ExchangeThread::EndThoseComplete() {
  bool ended = false;
  while (!in_work_.empty()) {
    bool complete = true;
    for (size_t member = 0; member < members_.size() && complete; ++member) {
      static_cast<void>(Current(member, true));
      static_cast<void>(Current(member, false));
      complete = members_[member].out.number > oldest_ && members_[member].in.number > oldest_;
    }

    if (!complete) break;
    Sum(in_work_.front());
    in_work_.pop_front();
    complete_.store(oldest_++, std::memory_order_release);
    moved_ns_ = clock_->NowNs();
    ended = true;
  }
  if (ended) eventfd_write(changed_.get(), 1);
}

void ExchangeThread::Sum(const SocketExchange& exchange) const {
  const BlockView& block = exchange.summed;
  if (block.data == nullptr || block.shard_elements == 0) return;
  std::byte* const own = static_cast<std::byte*>(block.data) + rank_ * block.shard_bytes();
  SumInRankOrder(block.data, static_cast<uint32_t>(members_.size()), block.shard_elements,
                 block.dtype, own);
}

// A rank may leave when no exchange in progress needs it, or only one behind the oldest.
void ExchangeThread::LookForLost() {
  if (failed_) return;
  for (size_t member = 0; member < members_.size(); ++member) {
    for (const bool outward : {false, true}) {
      const Direction& direction = outward ? members_[member].out : members_[member].in;
      if (direction.lost.empty()) continue;
      const bool is_needed = Current(member, outward) != nullptr && direction.number == oldest_;
      if (!is_needed && !TP_PLANTED("comm.leaver_ends_group")) continue;
      return Fail(Broken("rank " + std::to_string(member) + " of the group " + direction.lost));
    }
  }
}

void ExchangeThread::LookAtTheTime() {
  if (failed_ || in_work_.empty() || clock_->NowNs() - moved_ns_ <= timeout_ns_) return;
  Fail(Broken("nothing has come for " + FormatNs(timeout_ns_) + "; waited for " + Owing()));
}

std::string ExchangeThread::Owing() const {
  std::string ranks;
  for (size_t member = 0; member < members_.size(); ++member) {
    if (members_[member].in.number > oldest_ && members_[member].out.number > oldest_) continue;
    ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(member);
  }
  return ranks + " of the group";
}

Status ExchangeThread::Broken(const std::string& why) const {
  const std::string name = in_work_.empty() ? "an operation" : in_work_.front().tag.Text();
  return Status(ErrorId::kCollectiveFailed, name + " in group '" + group_ +
                                                "' failed on its rank " + std::to_string(rank_) +
                                                " of " + std::to_string(members_.size()))
      .Why(why);
}

void ExchangeThread::Fail(Status why) {
  if (failed_) return;
  failure_ = std::move(why);
  for (Member& member : members_) member.socket.Reset();
  in_work_.clear();
  failed_.store(true, std::memory_order_release);
  eventfd_write(changed_.get(), 1);
}

}  // namespace tidepool::trainer
