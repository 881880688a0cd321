// ClientOptions: where a client looks for its memserver, its time limits, and its callbacks.
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

// GPU memory that the rank brings as its rCache, instead of host memory made by the server
// (docs/gpu.md).
struct BroughtMemory {
  // Form of the export: 1 the descriptor of an allocation, 2 a handle in sealed memory.
  uint32_t form = 0;
  std::array<uint8_t, 16> uuid = {};  // of the GPU
  int descriptor = -1;                // the export; the caller keeps it open while the client lives
  std::byte* data = nullptr;          // its address for the caller's streams; unused by the client
  uint64_t bytes = 0;
  // Called on the client's thread: with true before it meets a server that may need GPU memory for
  // its context (the first one, and each replacement), with false when that server has answered.
  // Null: nobody makes room.
  std::function<void(bool server_comes)> make_room = nullptr;
};

struct ClientOptions {
  // Measures all limits below, and every wait sleeps on it; outlives the client. Required.
  Clock* clock = nullptr;
  std::string socket_dir;                                 // empty: shm::DefaultClientDir()
  int64_t connect_timeout_ns = int64_t{2} * 1000000000;   // until a server answers at the socket
  int64_t attach_timeout_ns = int64_t{600} * 1000000000;  // until it has prepared the job's memory
  // How long a job waits for room in the server's queue; 0: it is refused at once.
  int64_t queue_timeout_ns = 0;
  // Time limit of one Wait, without the wait for a lost server.
  int64_t wait_timeout_ns = int64_t{120} * 1000000000;
  // Time limit of SaveWeights, likewise; the server gives up first, with a reason.
  int64_t save_timeout_ns = int64_t{660} * 1000000000;
  // How long to spin on the ring before sleeping; 0: sleep immediately, as needed with a clock that
  // stands still between sleeps.
  int64_t spin_ns = 20'000;
  // How long to wait for a server that has ended; 0: not at all.
  int64_t server_timeout_ns = 0;
  // Whether to wait for a rank that is still attached to leave, up to attach_timeout_ns.
  bool attach_retry = false;
  // Called with one line when the client starts to wait for a lost server or for room, and with one
  // when it continues.
  std::function<void(const std::string&)> on_wait = nullptr;
  // Polled while the job waits for room: true ends the wait.
  std::function<bool()> give_up = nullptr;
  std::optional<BroughtMemory> brought = {};
  // Identifies the run, at most 480 bytes (shm::kRunNoteMax). A server of protocol 6 keeps the note
  // of the job's first rank as long as the job, and returns it to all ranks that attach
  // (Attachment::note); it compares nothing.
  std::string run_note = {};
};

}  // namespace tidepool::client
