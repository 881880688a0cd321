#include "client/admin/send_http.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <sys/un.h>

#include "base/units.h"

namespace tidepool::client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Local = asio::local::stream_protocol;
using ErrorCode = beast::error_code;

constexpr uint64_t kAnswerBytesMax = 256ull << 20;

Status ErrorOf(const ErrorCode& error, const std::string& socket_path, const std::string& step,
               int64_t timeout_ns) {
  if (error == beast::error::timeout) {
    return Status(ErrorId::kWaitTimeout, "memserver did not answer within " + FormatNs(timeout_ns))
        .Where(socket_path);
  }

  if (step == "connect") {
    const bool forbidden = error == asio::error::access_denied;
    if (forbidden)
      return Status(ErrorId::kNotOwner, "the admin socket is not open to you")
          .Where(socket_path)
          .Fix("memctl doctor tells whose it is, and who may");

    return Status(ErrorId::kNoServer, "no memserver listens at the admin socket")
        .Where(socket_path)
        .Why(error.message())
        .Fix(
            "start one with `memserver run`, or name the directory of one that runs (-s DIR, "
            "TIDEPOOL_SOCKET_DIR)");
  }

  const bool closed = error == http::error::end_of_stream ||
                      error == http::error::partial_message || error == asio::error::eof ||
                      error == asio::error::connection_reset || error == asio::error::broken_pipe;
  if (closed)
    return Status(ErrorId::kServerGone, "memserver closed the connection before it had answered")
        .Where(socket_path);
  return Status(ErrorId::kHandshakeBad, "the admin socket does not speak HTTP: " + error.message())
      .Where(socket_path);
}

}  // namespace

Result<HttpReply> SendHttp(const std::string& socket_path, const HttpQuestion& question,
                           int64_t timeout_ns) {
  if (socket_path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return Status(ErrorId::kNoServer, "the path of the admin socket is too long")
        .Where(socket_path);
  }
  asio::io_context context(1);
  beast::basic_stream<Local> stream(context);
  stream.expires_after(std::chrono::nanoseconds(timeout_ns));

  http::request<http::string_body> request;
  request.version(11);
  request.method_string(question.method);
  request.target(question.target);
  request.set(http::field::host, "tidepool");
  request.set(http::field::user_agent, "memctl");
  request.keep_alive(false);
  request.body() = question.body;
  if (!question.body.empty()) request.set(http::field::content_type, "application/json");
  request.prepare_payload();

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kAnswerBytesMax);
  // Three steps; the first that fails leaves its name and error.
  ErrorCode error;
  std::string step = "connect";
  const auto received = [&](ErrorCode result, size_t) { error = result; };
  const auto sent = [&](ErrorCode result, size_t) {
    error = result;
    step = "receive";
    // Read also after a failed send: a server that refuses answers before it has read everything.
    http::async_read(stream, buffer, parser, received);
  };
  stream.async_connect(Local::endpoint(socket_path), [&](ErrorCode result) {
    error = result;
    if (result) return;
    step = "send";
    http::async_write(stream, request, sent);
  });

  context.run();
  if (error) return ErrorOf(error, socket_path, step, timeout_ns);
  const auto& response = parser.get();
  return HttpReply{response.result_int(), std::string(response[http::field::content_type]),
                   response.body()};
}

}  // namespace tidepool::client
