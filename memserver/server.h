// Server: the composition root of the daemon: makes every room, joins them by queues, starts the
// threads, and takes all down in order.
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
  // outlive the server; the owner's thread alone uses the former. Errors: kSocketInUse,
  // kSocketFailed, kHostMemoryShort, kMemoryMapFailed, kKeptLayoutUnknown, kKeeperFailed, and those
  // of OpenNvmeTier.
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options, KeptHolder* keeper,
                                               Clock* clock);
  // Stops first when that has not been done; waits for all threads; removes the sockets.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Tells sessions to end and takes no new ones; ended_fd() becomes readable when all of them are
  // down. Harmless when repeated. With hand_over, jobs stay in kept memory for the next server, and
  // their ranks are not told.
  void Stop(bool hand_over = false);
  int ended_fd() const;
  // Waits for the threads that speak to others; what is left is memory and idle workers. Part of
  // the destructor, and of a quick exit.
  void EndThreads();
  // Once ended_fd() is readable: jobs were left for the next server.
  bool HandedOver() const;
  // The memory that a keeper has to hold.
  std::vector<MemoryToHold> kept_parts() const;
  bool adopted() const;  // the pool is the former server's
  // Readable when a snapshot is to be handed to the admin thread.
  int snapshot_fd() const;
  void PublishSnapshots();
  // Readable when the admin socket asks to read the configuration again.
  int main_commands_fd() const;
  std::vector<MainCommand> TakeMainCommands();
  // Readable when the keeper is to hold memory of a GPU, or to let go of some: call
  // KeepStatesAsAsked, also while stopping.
  int keeps_fd() const;
  // `keeper` may be null: nobody holds anything any more.
  void KeepStatesAsAsked(KeptHolder* keeper);
  // Readable when a process that was a server before this one has ended: call PollFormerServers,
  // also while stopping. -1: never.
  int former_servers_fd() const;
  void PollFormerServers();
  // Mails a change to the serve loop, which answers its ticket.
  void Command(AdminCommand command);
  // Whether the serve loop has a job, as it said last; asks it again. True where it has not said
  // anything yet.
  bool MayHaveJobs();
  // Seconds for which the serve loop has not answered; asks it, so that it can.
  double SilentSeconds();

  // What the start has found and made, for the log and `memserver check`.
  uint64_t pool_bytes() const;
  const PoolFacts& pool_facts() const;
  const device::CopyTuning& copy_tuning() const;

 private:
  explicit Server(std::unique_ptr<ServerRooms> rooms);
  const std::unique_ptr<ServerRooms> rooms_;
};

}  // namespace tidepool::memserver
