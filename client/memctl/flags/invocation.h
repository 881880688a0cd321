// Invocation: a parsed command line of memctl.
//
// A value; made by ParseCommandLine (flags.h) or by a test.
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
  bool json = false;     // json, jsonl or yaml, all made from JSON
  bool quiet = false;    // -q: results and errors only
  bool verbose = false;  // -v: print each request
  // Print lines for people while a command works: -v output, and progress. Set by main; empty: no
  // output.
  std::function<void(const std::string&)> tell = {}, say = {};
  Clock* clock = nullptr;  // of main or a test; required to run a command
  bool header = true;      // --no-header
  bool color = true;       // --no-color; also off with NO_COLOR or without a terminal
  int64_t timeout_ns = 0;
  std::optional<int64_t> watch_ns;     // --watch: repeat at this interval
  bool batch = false;                  // print outputs one after another, also on a terminal
  int64_t for_ns = 10 * kNsPerSecond;  // --for of `report`, `record` and `timeline`: duration
  std::string from;                    // a recording to read instead of taking looks
  std::string metrics;                 // for `report`: a trainer's metrics.jsonl
  std::string step;                    // for `timeline`: a number, or "last"; empty: all
  double at_seconds = 0;               // for `residency --from`: time after the first look
  // For `residency` and `record`: what a column is; empty: a chunk.
  std::string by;
  uint64_t rounds = 0;  // of --watch; 0: until interrupted
  std::string job, state, tier, cursor;
  std::string name, chunk;  // for `tensors` and `chunk`
  uint64_t limit = 0;       // for chunks and events; 0: the server's default
  uint64_t last = 0;        // for events: only the last ones; 0: all
  // For `api`: the request. `target` is also the error of `explain`, the file of `report` and the
  // directory of `checkpoint`.
  std::string method, target;
  std::string xml;                        // for `topo`: an XML file of hwloc
  std::vector<std::string> directories;   // for `nvme tune`; empty: memserver's
  std::string value, file;                // for `config set`; `value`: also the second of `diff`
  std::string listen = "127.0.0.1:8642";  // for `page`
  std::vector<std::string> nodes, words;  // --node: machines, and their command line
  std::string answer;                     // used instead of asking the server, from another node
  // For commands that change something: the action, and the given fields of the request.
  std::string action;
  bool force = false;
  bool dry_run = false, yes = false;
  std::map<std::string, std::string> fields;
};

inline constexpr int64_t kTimeoutDefaultNs = 5 * kNsPerSecond;
inline constexpr int64_t kWaitReadyDefaultNs = 30 * kNsPerSecond;

}  // namespace tidepool::client
