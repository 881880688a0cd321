// The log facade: one line per event, with key=value fields; text on a terminal, JSON lines
// otherwise.
//
// Any thread. Lines go to stderr; results of a program go to stdout and never through here. log.cpp
// is the one door to spdlog. A caller waits until its line is written, except in a program that has
// called StartLogThread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tidepool {

// The severity of a line, and the format of lines (kAuto: text on a terminal, else JSON).
enum class LogLevel { kDebug, kInfo, kWarn, kError };
enum class LogFormat { kAuto, kText, kJson };

// Sizes, durations and rates as fields. Text shows them in readable form (pool=64.0 MiB); JSON has
// a number, and its key ends in the unit ("pool_bytes":67108864, "touch_seconds":0.057).
struct LogBytes {
  uint64_t bytes = 0;
};
struct LogSeconds {
  double seconds = 0;
};
struct LogRate {
  double bytes_per_second = 0;
};

// One key=value of a line. Text is quoted; numbers and booleans are not.
struct LogField {
  std::string key, value;
  bool quoted = true;  // false: a number or a boolean
  std::string unit;    // appended to the key in JSON
  std::string shown;   // shown by text in place of the value, unless empty
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  template <typename N>
  requires std::is_arithmetic_v<N> LogField(std::string_view k, N v)
      : key(k), value(std::to_string(v)), quoted(false) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false"), quoted(false) {}
  LogField(std::string_view k, LogBytes v);
  LogField(std::string_view k, LogSeconds v);
  LogField(std::string_view k, LogRate v);
};

// Call once at start, before other threads; the default is text at kInfo. `program` names the
// source in each line.
void InitLog(std::string_view program, LogLevel level, LogFormat format);
void SetLogLevel(LogLevel level);
// From now on a line that stderr has no room for is dropped, and a later one says how many were:
// for a process whose only thread must not wait for the reader of its log. No other thread may log.
void DropLinesThatBlock();
// Starts a thread that writes the lines from now on, so that callers no longer wait for the reader
// of the log: for a process that others wait for. Call it when the signal mask is final, because
// the thread inherits it. Lines that do not fit into its queue are dropped and counted. Call
// FlushLog before the program ends.
void StartLogThread();
// Waits, at most `timeout_ns`, until all lines are written; true if they are. Allocates nothing.
bool FlushLog(int64_t timeout_ns = 1'000'000'000);
// Bypasses the log: writes what stderr takes within `timeout_ns`. Allocates nothing.
void SayOnStderr(std::string_view text, int64_t timeout_ns = 1'000'000'000);

// Writes one line, unless its level is below the current one.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
inline void LogInfo(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, message, fields);
}
inline void LogWarn(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarn, message, fields);
}
inline void LogError(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, message, fields);
}
inline void LogDebug(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kDebug, message, fields);
}

// The last lines are stored for later queries: numbered from 1, and as JSON objects whatever the
// format of the log.
struct LoggedLine {
  uint64_t number = 0;
  std::string json;
};
inline constexpr size_t kLoggedLinesKept = 1024;
// Lines with numbers above `after`, oldest first, at most `most`. Earlier ones may be gone.
std::vector<LoggedLine> RecentLines(uint64_t after, size_t most);

}  // namespace tidepool
