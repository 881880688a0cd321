#include "client/memctl/page/page_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <new>

#include "base/clock.h"
#include "base/system/loopback.h"
#include "client/memctl/page/page_desk.h"

namespace tidepool::client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Stream = beast::basic_stream<Tcp>;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
// Limits per peer and in total; any process on this machine can connect.
constexpr uint32_t kConnectionsMax = 32, kHeaderBytesMax = 8 * 1024;
constexpr uint64_t kBodyBytesMax = 1024;  // no valid request has a body
constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kStreamPause = std::chrono::milliseconds(500);  // between two looks of a stream

// No external sources, no inline code, no framing by other pages.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

std::string_view View(beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

class PageServer::Engine {
 public:
  Engine(UniqueFd listening, const Invocation& invocation, const std::string& key)
      : desk_(
            key, [this, invocation] { return LookForPage(invocation, &pictures_); },
            invocation.clock),
        acceptor_(context_, Tcp::v4(), listening.Release()) {}

  void Run() {
    Spawn(Accept());
    context_.run();
  }

 private:
  // A failed conversation ends alone; lack of memory ends the program.
  void Spawn(asio::awaitable<void> task) {
    asio::co_spawn(context_, std::move(task), [](const std::exception_ptr& failure) {
      if (failure == nullptr) return;
      try {
        std::rethrow_exception(failure);
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception&) {
      }
    });
  }

  asio::awaitable<void> Accept() {
    while (true) {
      auto [error, socket] = co_await acceptor_.async_accept(kAsTuple);
      if (error) {  // out of descriptors: wait for open connections to end
        asio::steady_timer pause(context_, std::chrono::milliseconds(100));
        co_await pause.async_wait(kAsTuple);
      } else if (connections_ < kConnectionsMax) {
        Spawn(Converse(Stream(std::move(socket))));
      }
    }
  }

  asio::awaitable<void> Converse(Stream stream) {
    const Counted counted(&connections_);
    beast::flat_buffer buffer(kHeaderBytesMax + kBodyBytesMax + 4096);
    for (bool keep_alive = true; keep_alive;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(kHeaderBytesMax);
      parser.body_limit(kBodyBytesMax);
      stream.expires_after(kPatience);
      const auto [error, bytes] = co_await http::async_read(stream, buffer, parser, kAsTuple);
      if (error) co_return;

      const Request& request = parser.get();
      const PageAnswer answer = desk_.Answer({View(request.method_string()), View(request.target()),
                                              View(request[http::field::host]),
                                              View(request[http::field::authorization])});
      if (answer.goes_on && request.method() == http::verb::get)
        co_return co_await Push(&stream, answer, request);
      Response response = ResponseOf(answer, request);
      keep_alive = response.keep_alive();
      http::response_serializer<http::string_body> serializer(response);

      const bool head = request.method() == http::verb::head;
      serializer.split(head);
      stream.expires_after(kPatience);
      const auto sent =
          head ? std::get<0>(co_await http::async_write_header(stream, serializer, kAsTuple))
               : std::get<0>(co_await http::async_write(stream, serializer, kAsTuple));
      if (sent) co_return;
    }
    beast::error_code ignored;
    stream.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  }

  // Sends looks, one line each, until the browser leaves or stops reading.
  asio::awaitable<void> Push(Stream* stream, const PageAnswer& answer, const Request& request) {
    Response head = ResponseOf(answer, request);
    head.content_length(boost::none);
    head.chunked(true);
    http::response_serializer<http::string_body> serializer(head);
    stream->expires_after(kPatience);
    auto error = std::get<0>(co_await http::async_write_header(*stream, serializer, kAsTuple));
    asio::steady_timer pause(context_);

    while (!error) {
      const std::string line = desk_.Look() + "\n";
      stream->expires_after(kPatience);
      error = std::get<0>(
          co_await asio::async_write(*stream, http::make_chunk(asio::buffer(line)), kAsTuple));
      pause.expires_after(kStreamPause);
      co_await pause.async_wait(kAsTuple);
    }
  }

  static Response ResponseOf(const PageAnswer& answer, const Request& request) {
    Response response(static_cast<http::status>(answer.status), request.version());
    response.set(http::field::server, "tidepool");
    response.set(http::field::content_type, answer.content_type);
    response.set(http::field::cache_control, "no-store");

    response.set("Content-Security-Policy", kPolicy);
    response.set(http::field::x_frame_options, "DENY");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("Referrer-Policy", "no-referrer");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
    response.set("Cross-Origin-Opener-Policy", "same-origin");
    if (!answer.allow.empty()) response.set(http::field::allow, answer.allow);
    response.keep_alive(request.keep_alive());
    response.content_length(answer.body.size());
    if (request.method() != http::verb::head) response.body() = answer.body;
    return response;
  }

  // Counts conversations, also those that end by an exception.
  class Counted {
   public:
    explicit Counted(uint32_t* count) : count_(count) { ++*count_; }
    ~Counted() { --*count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    uint32_t* count_;
  };

  PagePictures pictures_;
  PageDesk desk_;
  uint32_t connections_ = 0;  // outlives the context, whose destruction ends coroutines
  asio::io_context context_{1};
  // (the type defines the address format, and none is asked for: IPv6 is served too)
  Tcp::acceptor acceptor_;
};

PageServer::PageServer(std::unique_ptr<Engine> engine, std::string url)
    : engine_(std::move(engine)), url_(std::move(url)) {}
PageServer::~PageServer() = default;

Result<std::unique_ptr<PageServer>> PageServer::Open(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(UniqueFd listening, ListenLoopback(invocation.listen, "--listen"));
  TP_ASSIGN_OR_RETURN(const std::string key, NewPageKey());
  const std::string url = "http://" + AddressOf(listening) + "/#" + key;
  try {
    auto engine = std::make_unique<Engine>(std::move(listening), invocation, key);
    // Private constructor: make_unique cannot.
    return std::unique_ptr<PageServer>(new PageServer(std::move(engine), url));
  } catch (const boost::system::system_error& error) {
    return Status(ErrorId::kSocketFailed, "the page cannot be served")
        .Where(invocation.listen)
        .Why(error.what());
  }
}

Status PageServer::Serve() {
  try {
    engine_->Run();
  } catch (const boost::system::system_error& error) {
    return Status(ErrorId::kSocketFailed, "the page is served no longer")
        .Where(url_)
        .Why(error.what());
  }
  return Status(ErrorId::kSocketFailed, "the page is served no longer").Where(url_);
}

}  // namespace tidepool::client
