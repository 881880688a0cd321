// Server: the composition root of the daemon: makes every component, connects them by queues,
// starts the threads, and ends everything in order.
//
// One thread (main, or a test) owns a Server. Between Start and the end it only calls
// PublishSnapshots when snapshot_fd() is readable, and Stop. Threads: serve loop, control,
// preparation, checkpoint, admin, optimizer workers, copy threads (docs/threads.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "device/host/copy_tuning.h"
#include "memserver/control/mailbox.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/server_options.h"

namespace tidepool::memserver {

struct ServerRooms;

class Server {
 public:
  // Claims the sockets, then touches the pool (0.3 to 3 s/GiB), then serves. `keeper` and `clock`
  // outlive the server; only the owner's thread uses the keeper. Errors: kSocketInUse,
  // kSocketFailed, kHostMemoryShort, kMemoryMapFailed, kKeptLayoutUnknown, kKeeperFailed, and those
  // of OpenNvmeTier.
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options, KeptHolder* keeper,
                                               Clock* clock);
  // Calls Stop unless that was done; waits for all threads; removes the sockets.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Tells sessions to end and takes no new ones; ended_fd() becomes readable when all of them are
  // down. Idempotent. With hand_over, jobs stay in kept memory for the next server, and their ranks
  // are not told.
  void Stop(bool hand_over = false);
  int ended_fd() const;
  // Waits for the threads that serve others; only memory and idle workers remain. Part of the
  // destructor, and of a quick exit.
  void EndThreads();
  // True if jobs were left for the next server. Call once ended_fd() is readable.
  bool HandedOver() const;
  // The memory that a keeper has to hold.
  std::vector<MemoryToHold> kept_parts() const;
  bool adopted() const;  // the pool is the former server's
  // Readable when a snapshot is to be passed to the admin thread.
  int snapshot_fd() const;
  void PublishSnapshots();
  // Readable when the admin socket asks for a command of the main thread.
  int main_commands_fd() const;
  std::vector<MainCommand> TakeMainCommands();
  // Readable when the keeper is to hold or release GPU memory: call KeepStatesAsAsked, also while
  // stopping.
  int keeps_fd() const;
  // `keeper` may be null: nothing is held any more.
  void KeepStatesAsAsked(KeptHolder* keeper);
  // Readable when a former server's process has ended: call PollFormerServers, also while stopping.
  // -1: never.
  int former_servers_fd() const;
  void PollFormerServers();
  // Sends a change to the serve loop, which answers its ticket.
  void Command(AdminCommand command);
  // True if the serve loop has a job, as of its last report; asks it again. True if it has not
  // reported yet.
  bool MayHaveJobs();
  // Seconds for which the serve loop has not answered; asks it, so that it can.
  double SilentSeconds();

  // Results of the start, for the log and `memserver check`.
  uint64_t pool_bytes() const;
  const PoolFacts& pool_facts() const;
  const device::CopyTuning& copy_tuning() const;

 private:
  explicit Server(std::unique_ptr<ServerRooms> rooms);
  const std::unique_ptr<ServerRooms> rooms_;
};

}  // namespace tidepool::memserver
