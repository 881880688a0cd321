#include "base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/log_queue.h"
#include "base/system/nonblocking_stderr.h"
#include "base/text/error_text.h"
#include "base/text/json_quote.h"
#include "base/units.h"

namespace tidepool {
namespace {

struct LogState {
  std::string program = "tidepool";
  bool json = false;
  std::shared_ptr<spdlog::logger> logger;
  std::unique_ptr<NonblockingStderr> output;  // null: the logger writes, and lines wait for room
  std::mutex mutex;                           // held for a few instructions
  std::deque<LoggedLine> recent;              // guarded by mutex, as last
  uint64_t last = 0;
};

// Set once. Not in LogState, which a process without free memory could not make.
constinit std::atomic<LogQueue*> log_queue{nullptr};

LogState& State() {
  static LogState* state = [] {
    auto* made = new LogState;  // lives as long as the process, so that late threads may log
    made->logger = std::make_shared<spdlog::logger>(
        "tidepool", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->logger->set_pattern("%v");
    made->logger->flush_on(spdlog::level::debug);
    return made;
  }();
  return *state;
}

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

const char* NameOf(LogLevel level) {
  constexpr std::array<const char*, 4> kNames{"debug", "info", "warn", "error"};
  return kNames[static_cast<size_t>(level)];
}

std::string TimeText(const char* format) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::array<char, 40> seconds{};
  std::array<char, 64> text{};
  strftime(seconds.data(), seconds.size(), format, &parts);
  std::snprintf(text.data(), text.size(), "%s.%03ldZ", seconds.data(), now.tv_nsec / 1'000'000);
  return text.data();
}

std::string TextLine(LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields) {
  std::string line = TimeText("%H:%M:%S") + " " + State().program + " ";
  if (level != LogLevel::kInfo) line += std::string(NameOf(level)) + ": ";
  line += message;

  for (const LogField& field : fields) {
    const std::string& value = field.shown.empty() ? field.value : field.shown;
    const bool plain = (!field.quoted && field.shown.empty()) ||
                       value.find_first_of(" \"\n=") == std::string::npos;
    line += "  " + field.key + "=" + (plain ? value : QuoteJson(value));
  }
  // What went wrong is for people; other lines stay one line each.
  return level < LogLevel::kWarn ? line : FoldText(line);
}

std::string JsonLine(LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields) {
  std::string text = "{\"time\":" + QuoteJson(TimeText("%Y-%m-%dT%H:%M:%S")) +
                     ",\"level\":" + QuoteJson(NameOf(level)) +
                     ",\"program\":" + QuoteJson(State().program) +
                     ",\"message\":" + QuoteJson(message);
  for (const LogField& field : fields) {
    text += "," + QuoteJson(field.key + field.unit) + ":" +
            (field.quoted ? QuoteJson(field.value) : field.value);
  }
  return text + "}";
}

// The next line that is written says how many were dropped.
void WriteOrDrop(NonblockingStderr* output, bool json, const std::string& line) {
  if (const uint64_t lines = output->dropped(); lines > 0) {
    const auto told = {LogField("lines", lines)};
    constexpr std::string_view kWhat = "lines of the log were dropped: nobody read it";
    output->ForgetDropped();
    if (!output->Write(json ? JsonLine(LogLevel::kWarn, kWhat, told)
                            : TextLine(LogLevel::kWarn, kWhat, told))) {
      output->CountDropped(lines);
      return;
    }
  }

  output->Write(line);
}

}  // namespace

LogField::LogField(std::string_view k, LogBytes v)
    : key(k),
      value(std::to_string(v.bytes)),
      quoted(false),
      unit("_bytes"),
      shown(FormatBytes(v.bytes)) {}

LogField::LogField(std::string_view k, LogSeconds v)
    : key(k),
      value(std::to_string(v.seconds)),
      quoted(false),
      unit("_seconds"),
      shown(FormatDuration(v.seconds)) {}

LogField::LogField(std::string_view k, LogRate v)
    : key(k),
      value(FormatFixed(v.bytes_per_second, 0)),
      quoted(false),
      unit("_bytes_per_second"),
      shown(FormatFixed(v.bytes_per_second / 1e9, 1) + " GB/s") {}

void InitLog(std::string_view program, LogLevel level, LogFormat format) {
  State().program = program;
  State().json =
      format == LogFormat::kJson || (format == LogFormat::kAuto && isatty(STDERR_FILENO) == 0);
  SetLogLevel(level);
}

void SetLogLevel(LogLevel level) {
  State().logger->set_level(LevelOf(level));
}

void DropLinesThatBlock() {
  State().output = std::make_unique<NonblockingStderr>();
}

void StartLogThread() {
  LogState& state = State();
  if (log_queue.load(std::memory_order_acquire) != nullptr) return;
  const auto about_dropped = [&state](uint64_t count) {
    const char* const message = "lines of this log were dropped: nobody took them";
    const auto line = state.json ? JsonLine(LogLevel::kWarn, message, {{"count", count}})
                                 : TextLine(LogLevel::kWarn, message, {{"count", count}});
    return line + "\n";
  };
  // Lives as long as the process.
  log_queue.store(new LogQueue(STDERR_FILENO, about_dropped), std::memory_order_release);
}

bool FlushLog(int64_t timeout_ns) {
  LogQueue* const queue = log_queue.load(std::memory_order_acquire);
  return queue == nullptr || queue->Flush(timeout_ns);
}

void SayOnStderr(std::string_view text, int64_t timeout_ns) {
  WriteWithin(STDERR_FILENO, text, timeout_ns);
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  LogState& state = State();
  if (!state.logger->should_log(LevelOf(level))) return;
  std::string json = JsonLine(level, message, fields);
  const std::string text = state.json ? json : TextLine(level, message, fields);

  if (LogQueue* const queue = log_queue.load(std::memory_order_acquire)) {
    queue->Push(text + "\n");
  } else if (state.output != nullptr) {
    WriteOrDrop(state.output.get(), state.json, text);
  } else {
    state.logger->log(LevelOf(level), "{}", text);
  }

  const std::lock_guard lock(state.mutex);
  state.recent.push_back({++state.last, std::move(json)});
  if (state.recent.size() > kLoggedLinesKept) state.recent.pop_front();
}

std::vector<LoggedLine> RecentLines(uint64_t after, size_t most) {
  LogState& state = State();
  std::vector<LoggedLine> lines;
  const std::lock_guard lock(state.mutex);
  for (const LoggedLine& line : state.recent) {
    if (line.number > after && lines.size() < most) lines.push_back(line);
  }
  return lines;
}

}  // namespace tidepool
