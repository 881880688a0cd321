// FakeLoop: a thread that answers SnapshotWanted from a prepared snapshot, as the serve loop and
// the control thread do together.
//
// The test's thread changes what it answers through the atomics; the snapshots themselves are
// immutable.
#pragma once

#include <poll.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/event_queue.h"
#include "memserver/admin/admin_api.h"
#include "memserver/admin/admin_changes.h"
#include "memserver/admin/snapshot_source.h"
#include "memserver/control/mailbox.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

inline std::shared_ptr<const ConfigRows> TwoSettings() {
  ConfigRows config{.file = "/etc/x.toml"};
  config.settings = {
      {.key = "pool.size", .value = "8GiB", .origin = "/etc/x.toml:3", .fallback = "50%"},
      {.key = "log.level",
       .value = "info",
       .origin = "default",
       .fallback = "info",
       .is_live = true}};
  config.quotas = {
      {.match = "user:7", .origin = "/etc/x.toml:5", .guarantee = "4KiB", .weight = 2}};
  return std::make_shared<const ConfigRows>(config);
}

inline std::shared_ptr<const shm::JobSpec> ThreeTensors() {
  auto spec = std::make_shared<shm::JobSpec>();
  spec->rcache_bytes = 1024;
  spec->parameters = {
      {.name = "h.0.weight",
       .dims = {32, 16},
       .chunk = 1,
       .element_begin = 0,
       .element_count = 512},
      {.name = "h.0.bias", .dims = {16}, .chunk = 1, .element_begin = 512, .element_count = 16},
      {.name = "h.1.weight",
       .dims = {32, 16},
       .chunk = 5,
       .element_begin = 0,
       .element_count = 512}};
  return spec;
}

inline JobRow DetachedJob() {
  JobRow job;
  job.job = 5;
  job.name = "7";
  job.state = "detached";
  job.world = 1;
  job.chunks.assign(2, {.state = ChunkState::kResident, .elements = 64, .bytes = 1024});
  return job;
}

inline GpuRow OneGpu() {
  GpuRow gpu{.name = "cuda:0",
             .model = "a GPU",
             .uuid = "GPU-01",
             .form = "vmm",
             .note = "it can",
             .pin_failure = "",
             .failure = ""};
  gpu.bytes = 1000;
  gpu.bytes_taken = 10;
  gpu.pool_bytes = gpu.pinned_bytes = 64;
  gpu.sessions = 1;
  return gpu;
}

inline ServerFacts Facts() {
  return {.version = "1.2.3",
          .abi = 9,
          .build = "test build",
          .devices = {"host"},
          .socket_dir = "/run/x",
          .pid = 77};
}

constexpr AdminCaller kAdmin{.level = AdminLevel::kAdmin};

// "gpt", which trains.
inline JobRow GptJob() {
  JobRow gpt;
  gpt.job = 3;
  gpt.name = "gpt";
  gpt.state = "training";
  gpt.world = 2;
  gpt.version = 41;
  gpt.parameters = 6000;
  gpt.pool_bytes = 200'000;
  gpt.rcache_bytes = 2048;
  gpt.grad_norm = 1.5;
  gpt.step = {.phase = "backward",
              .micro_batch = 1,
              .micro_batches = 2,
              .chunks_done = 4,
              .fetches = 9,
              .fetches_waited = 2,
              .bytes_fetched = 36'864,
              .fetch_wait_ns = kNsPerSecond / 4};
  gpt.sessions = {{.session = 8,
                   .rank = 0,
                   .pid = 100,
                   .rcache_bytes = 1024,
                   .waits = {.fetch_ns = kNsPerSecond / 2, .gradient_ns = kNsPerSecond}},
                  {.session = 9, .rank = 1, .pid = 101, .rcache_bytes = 1024}};
  for (int state = 0; state < 6; ++state) {
    gpt.chunks.push_back({.state = static_cast<ChunkState>(state),
                          .elements = 1024,
                          .bytes = 16'384,
                          .version = 41,
                          .ranks_cached = state == 1   ? 3u
                                          : state == 2 ? 2u
                                                       : 0u,
                          .fetches = 5});
  }
  gpt.chunks[4].ranks_sending = 2;
  gpt.chunks[5].ranks_fetching = 3;
  gpt.spec = ThreeTensors();
  static const SteadyClock clock;
  auto spans = std::make_shared<SpanLog>(&clock);
  spans->Add(
      {.kind = SpanKind::kUpdate, .by = 1, .chunk = 4, .piece = 2, .begin_ns = 5, .end_ns = 9});
  spans->Add({.kind = SpanKind::kFetch, .chunk = 4, .begin_ns = 9, .end_ns = 12});
  spans->Add({.kind = SpanKind::kWrite, .by = 1, .chunk = 4, .begin_ns = 12, .end_ns = 13});
  spans->Add({.kind = SpanKind::kGpuUpdate, .by = 0, .chunk = 3, .begin_ns = 12, .end_ns = 14});
  gpt.spans = spans;
  return gpt;
}

// One directory works, the other failed; a demotion and a scrub are under way.
inline NvmeRow BusyNvme() {
  NvmeRow nvme;
  nvme.engine = "a simulated disk";
  nvme.repetitions = 6;
  nvme.directories = {{.path = "/mnt/a",
                       .bytes = 8192,
                       .bytes_used = 4096,
                       .bytes_read = 512,
                       .bytes_written = 1024},
                      {.path = "/mnt/b", .bytes = 8192, .failed = true}};
  nvme.writes_failed = 2;
  nvme.pieces_in_pool = 2;
  nvme.bytes_in_pool = 4096;
  nvme.unwritten = {{.job = 3,
                     .name = "gpt",
                     .chunk = 2,
                     .piece = 0,
                     .directory = "/mnt/a",
                     .offset = 512,
                     .error = EIO},
                    {.job = 3,
                     .name = "gpt",
                     .chunk = 5,
                     .piece = 1,
                     .directory = "/mnt/a",
                     .offset = 1024,
                     .error = ENOSPC}};
  nvme.late = {{.job = 3,
                .name = "gpt",
                .chunk = 1,
                .piece = 2,
                .directory = "/mnt/b",
                .offset = 2048,
                .write = true,
                .seconds = 41.5}};

  nvme.demotion = {.job = 3,
                   .name = "gpt",
                   .pieces = 9,
                   .pieces_written = 4,
                   .done = 2,
                   .failed = 1,
                   .bytes_freed = 4096};
  nvme.scrub = {.state = ScrubState::kRunning,
                .pieces = 9,
                .pieces_checked = 5,
                .bytes_checked = 2048,
                .repetitions = 1,
                .damaged = 1};
  nvme.scrub.seconds = 1.5;
  nvme.scrub.damage = {{3, "gpt", 4, 1, "/mnt/a", 4096, "its header is damaged"}};
  return nvme;
}

// Two jobs: "gpt" (id 3, two ranks, six chunks, one in each state) and "7" (id 5, detached, two
// chunks), of a ready server.
inline Snapshot TwoJobs() {
  Snapshot snapshot;
  snapshot.uptime_ns = 90 * kNsPerSecond;
  snapshot.ready = true;
  snapshot.pool_bytes = 1 << 20;
  snapshot.pool_used = 1 << 18;
  snapshot.pool_huge_bytes = 1 << 19;
  snapshot.pool_touch_seconds = 2.5;
  snapshot.gpus = {OneGpu()};
  snapshot.rcache_limit = 4096;
  snapshot.rcache_used = 2048;
  snapshot.workers = 2;
  snapshot.jobs = {GptJob(), DetachedJob()};
  snapshot.lost = {
      {.name = "old", .uid = 0, .version = 3, .at = 1'793'000'000, .why = "its lease"}};
  snapshot.accounts = {
      {"user:7",
       {.guarantee = 4096, .nvme_limit = 512, .weight = 2, .priority = Priority::kLow},
       11,
       22,
       33}};
  snapshot.waiting = {{.name = "big",
                       .account = "user:7",
                       .uid = 7,
                       .rank = 1,
                       .pid = 99,
                       .pool_bytes = 1 << 20,
                       .why = "job big needs more"}};
  snapshot.config = TwoSettings();
  snapshot.nvme = BusyNvme();
  return snapshot;
}

class FakeLoop {
 public:
  explicit FakeLoop(Snapshot snapshot = TwoJobs())
      : source(&to_loop, &clock),
        snapshot_(std::make_shared<const Snapshot>(std::move(snapshot))),
        thread_([this] { Main(); }) {}
  ~FakeLoop() {
    stop_ = true;
    to_loop.Push(StopServing{});
    thread_.join();
  }

  SteadyClock clock;
  EventQueue<ControlEvent> to_loop;
  EventQueue<MainCommand> to_main;  // answered as changes are
  SnapshotSource source;
  std::atomic<bool> stuck{false};
  std::atomic<int> asked{0};

  AdminMail mail() { return {&to_loop, &to_main}; }
  // Changes that came since the last call; and how they are answered from now on.
  std::vector<AdminCommand> TakeCommands() {
    const std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
  }
  // What the main thread was asked for since the last call.
  std::vector<MainCommand::What> TakeMainCommands() {
    const std::lock_guard lock(mutex_);
    return std::exchange(main_commands_, {});
  }
  void AnswerWith(Status result) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
  }

 private:
  void Main() {
    std::vector<ControlEvent> events;
    std::vector<MainCommand> reloads;
    int owed = 0;
    while (!stop_) {
      pollfd event{to_loop.event_fd(), POLLIN, 0};
      poll(&event, 1, 1);
      to_loop.ClearEvent();
      to_loop.TakeAll(&events);
      for (ControlEvent& each : events) {
        owed += std::holds_alternative<SnapshotWanted>(each) ? 1 : 0;
        if (auto* command = std::get_if<AdminCommand>(&each)) Do(std::move(*command));
      }
      if (to_main.TakeAll(&reloads)) AnswerReloads(reloads);
      for (; owed > 0 && !stuck; --owed) {
        ++asked;
        source.Publish(snapshot_);
      }
    }
  }

  void AnswerReloads(const std::vector<MainCommand>& reloads) {
    const std::lock_guard lock(mutex_);
    for (const MainCommand& each : reloads) {
      main_commands_.push_back(each.what);
      each.ticket->Answer(result_, {"log.level"});
    }
  }

  void Do(AdminCommand command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(command);
    command.ticket->Answer(result_);
  }

  std::mutex mutex_;
  std::vector<AdminCommand> commands_;  // guarded by mutex_, as result_
  std::vector<MainCommand::What> main_commands_;
  Status result_;
  const std::shared_ptr<const Snapshot> snapshot_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tidepool::memserver
