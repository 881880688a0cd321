// Invocation: what a command line of memctl asks for.
//
// A value; made by ParseCommandLine (flags.h), or by a test.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tidepool::client {

struct Invocation {
  std::string command;     // a name of Commands()
  std::string socket_dir;  // --socket-dir, else shm::DefaultClientDir()
  std::string
      form;  // -o: "table", "wide", "json", "jsonl", "yaml"; of `residency` also "svg", "html"
  bool json = false;     // a form for programs: json, jsonl or yaml, which are made of it
  bool quiet = false;    // -q: results and errors alone
  bool verbose = false;  // -v: each request
  // Where lines for people go while a command works: of -v, and of what takes its time. main's;
  // empty: nowhere.
  std::function<void(const std::string&)> tell = {}, say = {};
  Clock* clock = nullptr;  // main's, or a test's; whoever runs a command gives one
  bool header = true;      // --no-header
  bool color = true;       // --no-color; NO_COLOR and output that is no terminal also turn it off
  int64_t timeout_ns = 0;
  std::optional<int64_t> watch_ns;     // --watch: again and again at this distance
  bool batch = false;                  // one behind the other, also on a terminal
  int64_t for_ns = 10 * kNsPerSecond;  // of `report`, `record` and `timeline`: how long they look
  std::string from;                    // a recording, instead of looks
  std::string metrics;                 // of `report`: metrics.jsonl of a trainer
  std::string step;                    // of `timeline`: a number, or "last"; empty: all
  double at_seconds = 0;               // of `residency --from`: behind its first look
  // `residency` and `record`: what a column is; empty: a chunk.
  std::string by;
  uint64_t rounds = 0;  // of --watch; 0: until it is interrupted
  std::string job, state, tier, cursor;
  std::string name, chunk;  // of `tensors` and `chunk`
  uint64_t limit = 0;       // of chunks and events; 0: the server's own
  uint64_t last = 0;        // of events: only so many; 0: all
  // `api`: the request. `target` is also the error of `explain`, the file of `report` and the
  // directory of `checkpoint`.
  std::string method, target;
  std::string xml;                        // of `topo`: a file of hwloc's
  std::vector<std::string> directories;   // of `nvme tune`; empty: memserver's
  std::string value, file;                // of `config set`; `value`: the other one of `diff`
  std::string listen = "127.0.0.1:8642";  // of `page`
  std::vector<std::string> nodes, words;  // --node: machines, and the command line for them
  std::string answer;                     // taken instead of asking, where somebody else was asked
  // Commands that change something: what to do, and the fields of the request that were given.
  std::string action;
  bool force = false;
  bool dry_run = false, yes = false;
  std::map<std::string, std::string> fields;
};

inline constexpr int64_t kTimeoutDefaultNs = 5 * kNsPerSecond;
inline constexpr int64_t kWaitReadyDefaultNs = 30 * kNsPerSecond;

}  // namespace tidepool::client
