// ClientOptions: how a client looks for its memserver, how long it waits, and what it calls
// meanwhile.
//
// A value type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"

namespace tidepool::client {

// Memory of a GPU that the rank brings as its rCache, in place of host memory that the server makes
// (docs/gpu.md).
struct BroughtMemory {
  // How it is exported: 1 the descriptor of an allocation, 2 a handle in sealed memory.
  uint32_t form = 0;
  std::array<uint8_t, 16> uuid = {};  // of the GPU
  int descriptor = -1;                // as exported; stays the caller's, open as long as the client
  std::byte* data = nullptr;          // where it lies for the caller's streams; never touched here
  uint64_t bytes = 0;
  // Called on the client's thread: with true before it meets a server that may need room on the GPU
  // for its context (the first one, and each that replaces one that has ended), with false when
  // that server has answered. None: nobody makes room.
  std::function<void(bool server_comes)> make_room = nullptr;
};

struct ClientOptions {
  // By which all limits below are kept, and on which every wait sleeps; it outlives the client.
  // Required.
  Clock* clock = nullptr;
  std::string socket_dir;                                 // empty: shm::DefaultClientDir()
  int64_t connect_timeout_ns = int64_t{2} * 1000000000;   // until a server answers at the socket
  int64_t attach_timeout_ns = int64_t{600} * 1000000000;  // until it has prepared the job's memory
  // How long a job without room waits in the server's queue; 0: it is refused.
  int64_t queue_timeout_ns = 0;
  // Time limit of one Wait, not counting the wait for a lost server.
  int64_t wait_timeout_ns = int64_t{120} * 1000000000;
  // Time limit of SaveWeights, likewise; the server gives up first, and says why.
  int64_t save_timeout_ns = int64_t{660} * 1000000000;
  // How long to look at the ring before sleeping; 0: sleep immediately, as with a clock that stands
  // still between sleeps.
  int64_t spin_ns = 20'000;
  // How long to wait for a server that ended; 0: not at all.
  int64_t server_timeout_ns = 0;
  // Wait for a rank that is still attached to leave, up to attach_timeout_ns.
  bool attach_retry = false;
  // Called with one line when the client starts to wait for a lost server or for room, and with one
  // when it goes on.
  std::function<void(const std::string&)> on_wait = nullptr;
  // Called now and then while the job waits for room: true ends the wait.
  std::function<bool()> give_up = nullptr;
  std::optional<BroughtMemory> brought = {};
  // What the run is known by, at most 480 bytes (shm::kRunNoteMax). A server of protocol 6 keeps
  // the note of the job's first rank as long as it keeps the job, and gives it to all that attach
  // (Attachment::note); it compares nothing.
  std::string run_note = {};
};

}  // namespace tidepool::client
