#include "client/admin/send_http.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>

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

namespace {

std::string TextOf(const HttpQuestion& question, bool is_last) {
  http::request<http::string_body> request;
  request.version(11);
  request.method_string(question.method);
  request.target(question.target);
  request.set(http::field::host, "tidepool");
  request.set(http::field::user_agent, "memctl");
  request.keep_alive(!is_last);
  request.body() = question.body;

  if (!question.body.empty()) request.set(http::field::content_type, "application/json");
  request.prepare_payload();
  std::ostringstream text;
  text << request;
  return text.str();
}

// One connection: sends everything at once, then receives the answers. Three steps; the first that
// fails leaves its name and error.
class Conversation {
 public:
  Conversation(const std::string& socket_path, int64_t timeout_ns, size_t answers)
      : path_(socket_path), timeout_ns_(timeout_ns), answers_(answers), stream_(context_) {}

  Result<std::vector<HttpReply>> Run(const std::string& requests) {
    stream_.expires_after(std::chrono::nanoseconds(timeout_ns_));
    stream_.async_connect(Local::endpoint(path_), [&](ErrorCode result) {
      error_ = result;
      if (result) return;
      step_ = "send";
      asio::async_write(stream_, asio::buffer(requests), [this](ErrorCode sent, size_t) {
        error_ = sent;
        step_ = "receive";
        // Read also after a failed send: a server that refuses answers before it has read
        // everything.
        Receive();
      });
    });

    context_.run();
    if (error_) return ErrorOf(error_, path_, step_, timeout_ns_);
    return std::move(replies_);
  }

 private:
  void Receive() {
    parser_.emplace();
    parser_->body_limit(kAnswerBytesMax);
    http::async_read(stream_, buffer_, *parser_, [this](ErrorCode result, size_t) {
      error_ = result;
      if (result) return;
      auto& response = parser_->get();
      replies_.push_back({response.result_int(), std::string(response[http::field::content_type]),
                          std::move(response.body())});
      // A server that refuses closes behind its first answer.
      if (replies_.size() < answers_ && response.keep_alive()) Receive();
    });
  }

  const std::string path_;
  const int64_t timeout_ns_;
  const size_t answers_;
  asio::io_context context_{1};
  beast::basic_stream<Local> stream_;
  beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  std::vector<HttpReply> replies_;
  ErrorCode error_;
  std::string step_ = "connect";
};

}  // namespace

Result<std::vector<HttpReply>> SendHttpAtOnce(const std::string& socket_path,
                                              const std::vector<HttpQuestion>& questions,
                                              int64_t timeout_ns) {
  if (socket_path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return Status(ErrorId::kNoServer, "the path of the admin socket is too long")
        .Where(socket_path);
  }
  std::string requests;
  for (const HttpQuestion& question : questions)
    requests += TextOf(question, &question == &questions.back());
  return Conversation(socket_path, timeout_ns, questions.size()).Run(requests);
}

Result<HttpReply> SendHttp(const std::string& socket_path, const HttpQuestion& question,
                           int64_t timeout_ns) {
  TP_ASSIGN_OR_RETURN(std::vector<HttpReply> replies,
                      SendHttpAtOnce(socket_path, {question}, timeout_ns));
  return std::move(replies.front());
}

}  // namespace tidepool::client
