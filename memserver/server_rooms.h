// ServerRooms: all components of a server, and the steps that make them. Members are in order of
// construction; they are destroyed in reverse, after the threads have been joined.
//
// One thread makes and destroys it (main, or a test); only Server uses it. The threads share only
// the queues.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/host/host_device.h"
#include "memserver/admin/admin_api.h"
#include "memserver/admin/admin_server.h"
#include "memserver/admin/snapshot_source.h"
#include "memserver/checkpoint/checkpoint_writer.h"
#include "memserver/control/control_server.h"
#include "memserver/control/socket_directory.h"
#include "memserver/former_servers.h"
#include "memserver/kept_memory.h"
#include "memserver/loop/serve_loop.h"
#include "memserver/server_options.h"
#include "memserver/update/worker_team.h"

namespace tidepool::memserver {

struct ServerRooms {
  explicit ServerRooms(Clock* its_clock) : clock(its_clock) {}

  Clock* const clock;
  std::unique_ptr<SocketDirectory> directory;
  KeptMemory kept;
  FormerServers former;
  std::unique_ptr<NvmeTier> nvme;  // outlives the team, whose workers hold its staging
  EventQueue<ControlEvent> events;
  EventQueue<ControlReply> replies;
  EventQueue<SaveRequest> saves;
  EventQueue<SaveResult> saved;
  EventQueue<std::shared_ptr<const Snapshot>> snapshots;
  EventQueue<MainCommand> main_commands;
  EventQueue<KeepStates> keeps;
  UniqueFd ended{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<device::HostDevice> device;
  device::CopyTuning copy_tuning;
  std::unique_ptr<GpuTable> gpus;  // registers memory of the pool
  std::unique_ptr<WorkerTeam> team;
  std::unique_ptr<ServeLoop> loop;
  std::unique_ptr<CheckpointWriter> writer;  // reads from the loop's jobs, so it ends before them
  std::unique_ptr<ControlServer> control;
  std::unique_ptr<SnapshotSource> source;
  std::unique_ptr<AdminApi> api;
  std::unique_ptr<AdminServer> admin;
  std::thread loop_thread, control_thread;
  std::atomic<bool> handed_over{false};  // set by the loop's thread at its end
  bool stopping = false;

  // The start, in this order: each step uses the results of those before it.

  // Opens the NVMe tier and the kept memory. Returns this server's bit in the index.
  Result<uint32_t> OpenMemory(const ServerOptions& options, std::vector<HeldMemory>* held,
                              KeptHolder* keeper, KeeperWatch* watch);
  // Makes the threads that copy, update and write.
  void MakeWorkers(const ServerOptions& options);
  Status MakeLoop(const ServerOptions& options, uint32_t own_server);
  void OpenGpus(const ServerOptions& options);
  // Opens the sockets for clients and admins.
  Status OpenSockets(const ServerOptions& options);
  void StartThreads();
};

}  // namespace tidepool::memserver
