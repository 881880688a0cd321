#include "memserver/admin/admin_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <thread>

#include "base/log.h"
#include "base/system/loopback.h"
#include "base/planted.h"
#include "base/unique_fd.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Local = asio::local::stream_protocol;
using Stream = beast::basic_stream<Local>;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

Status SocketError(const std::string& step, const std::string& path) {
  return Status(ErrorId::kSocketFailed, step + " the admin socket failed: " + std::strerror(errno))
      .Where(path);
}

// Opens a listening socket whose file only its owner may open.
Result<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Status(ErrorId::kSocketFailed, "the path of the admin socket is too long")
        .Where(path)
        .Fix("give a shorter --socket-dir");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SocketError("making", path);
  // The mode is set before the file exists: there is no moment at which others could connect.
  if (fchmod(fd.get(), 0600) != 0) return SocketError("protecting", path);
  unlink(path.c_str());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return SocketError("binding", path);
  if (listen(fd.get(), 64) != 0) return SocketError("listening on", path);
  return fd;
}

AdminCaller CallerAt(int socket, const Access& access) {
  auto user = UserAt(socket);
  if (!user.ok()) return {.uid = UINT32_MAX};
  return {.uid = user->uid, .pid = user->pid, .level = LevelOf(access, *user)};
}

// The caller over TCP, whom the kernel does not identify. It sees the numbers of all jobs.
constexpr AdminCaller kScraper{.uid = UINT32_MAX, .pid = 0, .level = AdminLevel::kOperator};

// The answer to a request that could not be read; status 0 if the connection is just to be closed.
AdminAnswer AnswerToUnreadable(const beast::error_code& error) {
  if (error == http::error::body_limit)
    return Problem(413, Status(ErrorId::kAdminBadRequest, "the request's body is too large"));
  if (error == http::error::header_limit)
    return Problem(431, Status(ErrorId::kAdminBadRequest, "the request's header is too large"));
  const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
  const bool closed = error == http::error::end_of_stream || error == http::error::partial_message;
  if (is_http && !closed)
    return Problem(
        400, Status(ErrorId::kAdminBadRequest, "the request is not HTTP: " + error.message()));
  return {.status = 0, .body = ""};
}

}  // namespace

class AdminServer::Engine {
 public:
  Engine(UniqueFd listener, AdminDoors doors, AdminApi* api, const AdminLimits& limits)
      : path_(doors.socket_path),
        api_(api),
        access_(doors.access),
        limits_(limits),
        acceptor_(context_, Local(), listener.Release()),
        metrics_listen_(std::move(doors.metrics_listen)),
        metrics_(context_),
        stop_(context_, stop_event_.get()) {}

  void Start() {
    stop_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this](const beast::error_code&) { context_.stop(); });
    Spawn(Accept(&acceptor_));
    if (const Status listens = ListenForMetrics(); !listens.ok()) {
      LogWarn("metrics are not served over TCP yet",
              {{"why", listens.Line()}, {"next", "it is tried again once a second"}});
      if (!TP_PLANTED("admin.metrics_tried_once")) Spawn(TryForMetrics());
    }

    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "tp-admin");
      context_.run();
    });
  }

  ~Engine() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = write(stop_event_.get(), &one, sizeof one);
    if (thread_.joinable()) thread_.join();
    stop_.release();
    unlink(path_.c_str());
  }

 private:
  void Spawn(asio::awaitable<void> task) {
    asio::co_spawn(context_, std::move(task), [](const std::exception_ptr& failure) {
      if (failure == nullptr) return;
      try {
        std::rethrow_exception(failure);
      } catch (const std::bad_alloc&) {
        // Ends the process as a defect should: the accept loop would not restart by itself.
        throw;
      } catch (const std::exception& error) {
        LogWarn("an admin connection failed", {{"error", error.what()}});
      }
    });
  }

  Status ListenForMetrics() {
    if (metrics_listen_.empty()) return Status();
    TP_ASSIGN_OR_RETURN(UniqueFd listening, ListenLoopback(metrics_listen_, "--metrics-listen"));
    // The type determines the form of addresses, and none is asked for: accepting, reading and
    // writing are the same for every stream socket.
    beast::error_code error;
    metrics_.assign(Local(), listening.get(), error);
    if (error)
      return Status(ErrorId::kSocketFailed, "metrics cannot be served")
          .Where(metrics_listen_)
          .Why(error.message());
    [[maybe_unused]] const int taken = listening.Release();
    Spawn(Accept(&metrics_));
    return Status();
  }

  asio::awaitable<void> TryForMetrics() {
    asio::steady_timer pause(context_);
    do {
      pause.expires_after(std::chrono::nanoseconds(limits_.metrics_pause_ns));
      co_await pause.async_wait(kAsTuple);
    } while (!ListenForMetrics().ok());
    LogInfo("metrics are served over TCP", {{"address", metrics_listen_}});
  }

  asio::awaitable<void> Accept(Local::acceptor* acceptor) {
    while (true) {
      auto [error, socket] = co_await acceptor->async_accept(kAsTuple);
      if (error == asio::error::operation_aborted) co_return;
      if (error) {  // no descriptor left: wait for open connections to end
        asio::steady_timer pause(context_, std::chrono::milliseconds(100));
        co_await pause.async_wait(kAsTuple);
        continue;
      }

      const AdminCaller caller =
          acceptor == &metrics_ ? kScraper : CallerAt(socket.native_handle(), access_);
      const uint32_t most = caller.level == AdminLevel::kAdmin ? limits_.connections_max
                                                               : limits_.user_connections_max;
      if (caller.level == AdminLevel::kNone) {
        const Status others(ErrorId::kNotOwner, "the admin socket belongs to another user");
        Spawn(Refuse(Stream(std::move(socket)), Problem(403, others)));
        continue;
      }

      if (connections_ >= limits_.connections_max || by_user_[caller.uid] >= most) {
        const Status full(ErrorId::kNotReady, "too many connections to the admin socket");
        Spawn(Refuse(Stream(std::move(socket)), Problem(503, full)));
        continue;
      }
      Spawn(Serve(Stream(std::move(socket)), caller));
    }
  }

  asio::awaitable<void> Refuse(Stream stream, AdminAnswer answer) {
    co_await Send(&stream, answer, {.keep_alive = false});
  }

  asio::awaitable<void> Serve(Stream stream, AdminCaller caller) {
    const Counted counted(&connections_), counted_by_user(&by_user_[caller.uid]);
    beast::flat_buffer buffer(limits_.header_bytes_max + limits_.body_bytes_max + 4096);
    bool keep_alive = true;
    while (keep_alive) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(limits_.header_bytes_max);
      parser.body_limit(limits_.body_bytes_max);
      stream.expires_after(std::chrono::nanoseconds(limits_.request_timeout_ns));
      const auto [error, bytes] = co_await http::async_read(stream, buffer, parser, kAsTuple);

      if (error) {
        const AdminAnswer answer = AnswerToUnreadable(error);
        if (answer.status != 0) co_await Send(&stream, answer, {.keep_alive = false});
        co_return;
      }
      const Request& request = parser.get();
      keep_alive = request.keep_alive();
      const AdminAnswer answer = AnswerTo(request, caller);
      const bool head = request.method() == http::verb::head;
      // A peer that has already sent another request waits for that answer, so it gets no log
      // lines.
      if (answer.follow_after && !head && request.version() >= 11 && buffer.size() == 0) {
        co_await Follow(&stream, answer);
        co_return;
      }
      if (!co_await Send(&stream, answer,
                         {.keep_alive = keep_alive, .head = head, .version = request.version()}))
        co_return;
    }
  }

  AdminAnswer AnswerTo(const Request& request, const AdminCaller& caller) {
    const auto host = request[http::field::host];
    if (caller.uid == kScraper.uid && !IsLoopbackName({host.data(), host.size()}) &&
        !TP_PLANTED("admin.host_unchecked")) {
      return Problem(421, Status(ErrorId::kNotOwner,
                                 "this port is for this machine alone, by names of the loopback")
                              .Fix("ask it by the address of --metrics-listen"));
    }

    if (caller.uid == kScraper.uid && request.target() != "/metrics") {
      return Problem(404, Status(ErrorId::kAdminNotFound, "this port answers GET /metrics only")
                              .Fix("use the admin socket"));
    }
    return api_->Answer({request.method_string(), request.target(), request.body(), caller});
  }

  struct Manner {
    bool keep_alive = true;
    bool head = false;  // only the header of the answer
    unsigned version = 11;
  };

  template <typename Body>
  void SetFields(const AdminAnswer& answer, http::response<Body>* response) const {
    response->set(http::field::server, "tidepool");
    response->set(http::field::content_type, answer.content_type);
    response->set(http::field::cache_control, "no-store");
    response->set("X-Tidepool-Abi", std::to_string(api_->facts().abi));
    if (!answer.allow.empty()) response->set(http::field::allow, answer.allow);
  }

  // Sends the answer, and then log lines in chunks, until the reader leaves or does not read for
  // the time limit of an answer.
  asio::awaitable<void> Follow(Stream* stream, const AdminAnswer& answer) {
    http::response<http::empty_body> response(http::status::ok, 11);
    SetFields(answer, &response);
    response.chunked(true);
    http::response_serializer<http::empty_body> serializer(response);
    stream->expires_after(std::chrono::nanoseconds(limits_.answer_timeout_ns));
    if (std::get<0>(co_await http::async_write_header(*stream, serializer, kAsTuple))) co_return;

    uint64_t last = *answer.follow_after;
    asio::steady_timer pause(context_);
    for (std::string lines = answer.body;; lines = EventLines(&last, kLoggedLinesKept)) {
      if (!lines.empty()) {
        stream->expires_after(std::chrono::nanoseconds(limits_.answer_timeout_ns));
        if (std::get<0>(co_await asio::async_write(*stream, http::make_chunk(asio::buffer(lines)),
                                                   kAsTuple)))
          co_return;
      }
      stream->expires_never();
      pause.expires_after(std::chrono::nanoseconds(limits_.follow_pause_ns));
      co_await pause.async_wait(kAsTuple);
      // A reader has nothing more to send: any input from it is its end.
      char byte = 0;
      const ssize_t count =
          recv(stream->socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (count >= 0 || (errno != EAGAIN && errno != EINTR)) co_return;
    }
  }

  // True when the whole answer was sent. Closes the sending side when the connection is not kept.
  asio::awaitable<bool> Send(Stream* stream, const AdminAnswer& answer, Manner manner) {
    Response response(static_cast<http::status>(answer.status), manner.version);
    SetFields(answer, &response);
    response.keep_alive(manner.keep_alive);
    response.content_length(answer.body.size());
    if (!manner.head) response.body() = answer.body;
    stream->expires_after(std::chrono::nanoseconds(limits_.answer_timeout_ns));
    http::response_serializer<http::string_body> serializer(response);
    serializer.split(manner.head);
    beast::error_code error;

    if (manner.head) {
      error = std::get<0>(co_await http::async_write_header(*stream, serializer, kAsTuple));
    } else {
      error = std::get<0>(co_await http::async_write(*stream, serializer, kAsTuple));
    }
    if (!manner.keep_alive) stream->socket().shutdown(Local::socket::shutdown_send, error);
    co_return !error;
  }

  // Counts the connections being served; must also work when a coroutine is destroyed early.
  class Counted {
   public:
    explicit Counted(uint32_t* count) : count_(count) { ++*count_; }
    ~Counted() { --*count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    uint32_t* count_;
  };

  const std::string path_;
  AdminApi* const api_;
  const Access access_;
  const AdminLimits limits_;
  // The engine's thread only; outlives the context, whose destruction ends coroutines.
  uint32_t connections_ = 0;
  std::map<uint32_t, uint32_t> by_user_;
  asio::io_context context_{1};
  Local::acceptor acceptor_;
  const std::string metrics_listen_;
  Local::acceptor metrics_;
  // Wakes the thread at the end. io_context::stop from another thread uses a descriptor that Asio
  // watches without checking that it can.
  const UniqueFd stop_event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  asio::posix::stream_descriptor stop_;
  std::thread thread_;
};

AdminServer::AdminServer(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
AdminServer::~AdminServer() = default;

Result<std::unique_ptr<AdminServer>> AdminServer::Start(AdminDoors doors, AdminApi* api,
                                                        const AdminLimits& limits) {
  const std::string socket_path = doors.socket_path;
  TP_ASSIGN_OR_RETURN(UniqueFd listener, Listen(socket_path));
  try {
    auto engine = std::make_unique<Engine>(std::move(listener), std::move(doors), api, limits);
    engine->Start();
    // make_unique cannot call the private constructor.
    return std::unique_ptr<AdminServer>(new AdminServer(std::move(engine)));
  } catch (const boost::system::system_error& error) {
    return Status(ErrorId::kSocketFailed, "the admin socket cannot be served")
        .Where(socket_path)
        .Why(error.what());
  }
}

}  // namespace tidepool::memserver
