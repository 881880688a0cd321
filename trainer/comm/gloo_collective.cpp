#include "trainer/comm/gloo_collective.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include <sys/random.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/check.h"
#include "base/formats/content_hash.h"
#include "base/unique_fd.h"
#include "trainer/comm/meeting/first_line.h"
#include "trainer/comm/meeting/meeting_port.h"
#include "trainer/comm/operation_thread.h"
#include "trainer/comm/rank_sum.h"
#include "trainer/comm/solo_collective.h"

namespace tidepool::trainer {
namespace {

// Runs `body`, which may throw anything of c10, c10d or Gloo; `doing` says what failed.
template <typename Body>
Status Guarded(const std::string& doing, Body&& body) {
  try {
    body();
    return {};
  } catch (const c10::Error& error) {
    return Status(ErrorId::kCollectiveFailed, doing).Why(FirstLine(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return Status(ErrorId::kCollectiveFailed, doing).Why(FirstLine(error.what()));
  }
}

// torch 2.11 enters a new group into its flight recorder before it takes the recorder's lock, so
// that two threads with a group each could end the process; and it takes a back trace for every
// operation. Who sets the variable keeps it.
void SwitchFlightRecorderOff() {
  [[maybe_unused]] static const int once = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

std::string Address(const Rendezvous& meet) {
  return meet.host + ":" + std::to_string(meet.port);
}

// Gloo's threads connect over these interfaces. A run on one machine stays on the loopback
// interface: no firewall is in its way.
std::vector<std::shared_ptr<gloo::transport::Device>> MakeDevices(const Rendezvous& meet) {
  std::vector<std::shared_ptr<gloo::transport::Device>> devices;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
  } else if (IsLoopback(meet.host)) {
    devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForHostname(meet.host == "::1" ? "::1" : "127.0.0.1"));
  } else {
    devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return devices;
}

at::Tensor ByteTensor(void* data, uint64_t size) {
  return at::from_blob(data, {static_cast<int64_t>(size)}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

struct GlooCollective::State {
  std::string group;
  uint32_t rank = 0, world = 1;
  std::function<Status()> doomed;
  std::function<void(const Status&)> stuck;
  std::set<Ticket> in_flight;
  OperationThread thread;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group;  // its threads tell the one above

  std::string Doing(const char* name) const {
    return std::string(name) + " in group '" + group + "' failed on its rank " +
           std::to_string(rank) + " of " + std::to_string(world);
  }

  std::byte* ShardOf(const BlockView& block, uint32_t of_rank) const {
    return static_cast<std::byte*>(block.data) + of_rank * block.shard_bytes();
  }

  c10::intrusive_ptr<c10d::Work> Broadcast(void* data, uint64_t size, uint32_t root) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{ByteTensor(data, size)};
    return process_group->broadcast(tensors, options);
  }

  using Pieces = std::vector<c10::intrusive_ptr<c10d::Work>>;

  // `start` makes the pieces, on the thread; c10d's order of them is that of the tickets. After an
  // error all are waited for: none may touch the caller's memory afterwards. (They end at once,
  // because Gloo closes a group's connections at its first error.)
  Ticket Start(const char* name, std::function<void(std::byte*, Pieces*)> start,
               uint64_t part_bytes = 0, std::function<void(std::byte*)> finish = {}) {
    const auto begin = [this, name, start = std::move(start)](uint64_t number, std::byte* parts) {
      Pieces pieces;
      ThreadOperation::Begun begun;
      begun.status = Guarded(Doing(name), [&] { start(parts, &pieces); });
      begun.pieces = static_cast<uint32_t>(pieces.size());
      for (const auto& piece : pieces) {
        piece->getFuture()->addCallback([this, name, number](c10::ivalue::Future& ended) {
          thread.PieceEnded(number, Guarded(Doing(name), [&] {
                              if (ended.hasError()) std::rethrow_exception(ended.exception_ptr());
                            }));
        });
      }
      return begun;
    };
    const Ticket ticket =
        thread.Start({.part_bytes = part_bytes, .begin = begin, .finish = std::move(finish)});
    in_flight.insert(ticket);
    return ticket;
  }

  // Waits in slices, so that the end of the run is heard that Gloo does not see.
  void AwaitEnd(Ticket ticket) {
    constexpr int kSliceMs = 250;
    constexpr int kSlicesToLeave = 8;
    for (int doomed_slices = 0; !thread.Ended(ticket);) {
      if (thread.AwaitChange(kSliceMs)) continue;
      const Status why = doomed ? doomed() : Status();
      if (!why.ok() && ++doomed_slices >= kSlicesToLeave && stuck) stuck(why);
    }
  }
};

GlooCollective::GlooCollective(std::unique_ptr<State> state) : state_(std::move(state)) {}

GlooCollective::~GlooCollective() {
  // A failure here has nobody left to be told to.
  state_->AwaitEnd(state_->thread.started());
}

uint32_t GlooCollective::rank() const {
  return state_->rank;
}

uint32_t GlooCollective::world() const {
  return state_->world;
}

uint64_t GlooCollective::part_bytes() const {
  return state_->thread.part_bytes();
}

Collective::Ticket GlooCollective::StartAllGather(const BlockView& block) {
  return state_->Start("all-gather", [state = state_.get(), block](std::byte*,
                                                                   State::Pieces* pieces) {
    if (block.shard_elements == 0) return;
    for (uint32_t root = 0; root < state->world; ++root) {
      pieces->push_back(state->Broadcast(state->ShardOf(block, root), block.shard_bytes(), root));
    }
  });
}

Collective::Ticket GlooCollective::StartReduceScatter(const BlockView& block) {
  const uint64_t size = state_->world * block.shard_bytes();
  const auto start = [state = state_.get(), block, size](std::byte* parts, State::Pieces* pieces) {
    if (size == 0) return;
    at::Tensor input = ByteTensor(block.data, size), output = ByteTensor(parts, size);
    std::vector<int64_t> equal_counts;
    pieces->push_back(
        state->process_group->alltoall_base(output, input, equal_counts, equal_counts));
  };
  const auto finish = [state = state_.get(), block](std::byte* parts) {
    if (parts == nullptr) return;
    SumInRankOrder(parts, state->world, block.shard_elements, block.dtype,
                   state->ShardOf(block, state->rank));
  };
  return state_->Start("reduce-scatter", start, size, finish);
}

bool GlooCollective::Test(Ticket ticket) {
  TP_CHECK(ticket >= 1 && ticket <= state_->thread.started(), "a ticket that this group gave out");
  return state_->thread.Ended(ticket);
}

Status GlooCollective::Wait(Ticket ticket) {
  TP_CHECK(state_->in_flight.erase(ticket) == 1, "each ticket is waited for once");
  state_->AwaitEnd(ticket);
  return state_->thread.ResultOf(ticket);
}

Status GlooCollective::Barrier() {
  return Wait(state_->Start("barrier", [state = state_.get()](std::byte*, State::Pieces* pieces) {
    pieces->push_back(state->process_group->barrier());
  }));
}

Status GlooCollective::SumDoubles(double* values, uint64_t count) {
  const uint32_t world = state_->world;
  std::vector<double> all(world * count);
  std::copy_n(values, count, all.data() + state_->rank * count);
  // Two fp32 places hold one double: only bytes travel.
  TP_RETURN_IF_ERROR(Wait(
      StartAllGather({.data = all.data(), .shard_elements = 2 * count, .dtype = DType::kF32})));
  for (uint64_t i = 0; i < count; ++i) {
    double sum = all[i];
    for (uint32_t rank = 1; rank < world; ++rank) sum += all[rank * count + i];
    values[i] = sum;
  }
  return {};
}

Status GlooCollective::Broadcast(void* bytes, uint64_t size) {
  if (size == 0) return {};
  return Wait(state_->Start("broadcast",
                            [state = state_.get(), bytes, size](std::byte*, State::Pieces* pieces) {
                              pieces->push_back(state->Broadcast(bytes, size, 0));
                            }));
}

struct RendezvousStore::State {
  Rendezvous meet;
  // The connection, and on the serving rank the server; null in a run of one rank.
  c10::intrusive_ptr<c10d::TCPStore> server;
  c10::intrusive_ptr<c10d::Store> store;    // the same, under the run's prefix
  c10::intrusive_ptr<c10d::Store> meeting;  // the same, under the meeting's; null before Gather

  // Everybody is here. From now on the meeting's prefix has all processes in it: what one of a
  // former meeting left behind is not found.
  Status CompareSigns(const std::vector<std::string>& everybody, const std::string& doing) {
    ContentHasher all;
    for (uint32_t rank = 0; rank < meet.world; ++rank) {
      std::vector<uint8_t> sign;
      TP_RETURN_IF_ERROR(Guarded(doing, [&] { sign = meeting->get(everybody[rank]); }));
      all.Update(std::as_bytes(std::span(sign)));
      if (sign.size() >= sizeof meet.spec &&
          std::memcmp(sign.data(), &meet.spec, sizeof meet.spec) == 0)
        continue;
      return Status(ErrorId::kJobMismatch, "rank " + std::to_string(rank) +
                                               " of this run trains something else than rank " +
                                               std::to_string(meet.rank))
          .Why(
              "their specifications differ: model, data, sizes or other options that all ranks "
              "must share")
          .Fix("start all ranks with the same command line");
    }
    meeting = c10::make_intrusive<c10d::PrefixStore>(HexOf(all.Finish()), meeting);
    return {};
  }
};

namespace {

// What a rank leaves at the meeting: what it trains, and which process it is.
std::vector<uint8_t> SignOf(const Rendezvous& meet) {
  std::vector<uint8_t> sign(sizeof meet.spec + sizeof(uint64_t));
  std::memcpy(sign.data(), &meet.spec, sizeof meet.spec);
  // Without one, a meeting that mixes two lives of a rank is found out by a time-out, as it was
  // before.
  static_cast<void>(getrandom(sign.data() + sizeof meet.spec, sizeof(uint64_t), 0));
  return sign;
}

}  // namespace

RendezvousStore::RendezvousStore(std::unique_ptr<State> state) : state_(std::move(state)) {}

RendezvousStore::~RendezvousStore() = default;

Result<std::unique_ptr<RendezvousStore>> RendezvousStore::Open(const Rendezvous& meet) {
  auto state = std::make_unique<State>();
  state->meet = meet;
  SwitchFlightRecorderOff();
  if (meet.world > 1) {
    const std::string doing = std::string(meet.serves_store ? "opening" : "reaching") +
                              " the rendezvous at " + Address(meet) + " failed on rank " +
                              std::to_string(meet.rank) + " of " + std::to_string(meet.world);
    UniqueFd listener;
    if (meet.serves_store && IsLoopback(meet.host) && meet.host != "::1") {
      listener = ListenOnLoopback(meet.port);
      if (!listener.valid())
        return Status(ErrorId::kCollectiveFailed, doing).Why(std::strerror(errno));
    }
    if (!meet.serves_store) {
      using Ranks = std::vector<uint32_t>;
      const auto rank_0 = [&meet](bool) {
        return Result<Ranks>(SomebodyListens(meet) ? Ranks{} : Ranks{0});
      };
      TP_RETURN_IF_ERROR(AwaitRanks(meet, doing, rank_0));
    }
    TP_RETURN_IF_ERROR(Guarded(doing, [&] {
      c10d::TCPStoreOptions options;
      options.port = meet.port;
      options.isServer = meet.serves_store;
      options.numWorkers = meet.world;
      options.waitWorkers = false;  // the groups wait for their members themselves
      if (listener.valid()) {
        options.port = BoundPort(listener.get());
        options.masterListenFd = listener.Release();
      }
      options.timeout = std::chrono::milliseconds(meet.timeout_ms);
      state->server = c10::make_intrusive<c10d::TCPStore>(meet.host, options);
      state->store = c10::make_intrusive<c10d::PrefixStore>(meet.prefix, state->server);
    }));
  }
  return std::unique_ptr<RendezvousStore>(new RendezvousStore(std::move(state)));
}

uint16_t RendezvousStore::port() const {
  return state_->server ? state_->server->getPort() : 0;
}

namespace {
// key: how many meetings of this store have been disbanded.
constexpr const char* kMeetings = "meetings";
}  // namespace

Status RendezvousStore::Gather() {
  const Rendezvous& meet = state_->meet;
  if (meet.world == 1) return {};
  const std::string doing = "meeting the other ranks at " + Address(meet) + " failed on rank " +
                            std::to_string(meet.rank);
  std::vector<std::string> everybody;
  for (uint32_t rank = 0; rank < meet.world; ++rank)
    everybody.push_back("here/" + std::to_string(rank));
  TP_RETURN_IF_ERROR(Guarded(doing, [&] {
    const int64_t number = state_->store->add(kMeetings, 0);
    state_->meeting =
        c10::make_intrusive<c10d::PrefixStore>("meeting" + std::to_string(number), state_->store);
    state_->meeting->set(everybody[meet.rank], SignOf(meet));
  }));
  // Now and then only: hundreds of ranks that ask for each other one by one would keep the store
  // from all else.
  const uint64_t refresh_every = std::max<uint64_t>(20, meet.world);
  std::vector<uint32_t> missing;
  const auto ask = [&](bool exactly, uint64_t turn) {
    if (state_->meeting->check(everybody)) return missing.clear();
    if (!exactly && turn % refresh_every != 0) return;
    missing.clear();
    for (uint32_t rank = 0; rank < meet.world; ++rank) {
      if (!state_->meeting->check({everybody[rank]})) missing.push_back(rank);
    }
  };
  const auto ranks = [&,
                      turn = uint64_t{0}](bool exactly) mutable -> Result<std::vector<uint32_t>> {
    TP_RETURN_IF_ERROR(Guarded(doing, [&] { ask(exactly, turn++); }));
    return missing;
  };
  TP_RETURN_IF_ERROR(AwaitRanks(meet, doing, ranks));
  return state_->CompareSigns(everybody, doing);
}

void RendezvousStore::Disband() {
  if (state_->meeting == nullptr) return;
  state_->meeting.reset();
  if (state_->meet.rank != 0) return;
  // Where the store is gone, the next one counts anew.
  static_cast<void>(Guarded("disbanding", [&] { state_->store->add(kMeetings, 1); }));
}

Result<std::unique_ptr<Collective>> RendezvousStore::MakeGroup(const GroupSpec& spec) {
  const auto position = std::find(spec.ranks.begin(), spec.ranks.end(), state_->meet.rank);
  TP_CHECK(position != spec.ranks.end(), "this rank is a member of the group that it makes");
  if (spec.ranks.size() == 1)
    return std::unique_ptr<Collective>(std::make_unique<SoloCollective>());

  auto group = std::make_unique<GlooCollective::State>();
  group->group = spec.name;
  group->rank = static_cast<uint32_t>(position - spec.ranks.begin());
  group->world = static_cast<uint32_t>(spec.ranks.size());
  group->doomed = state_->meet.doomed;
  group->stuck = state_->meet.stuck;
  TP_RETURN_IF_ERROR(Guarded(group->Doing("meeting the other ranks"), [&] {
    const std::chrono::milliseconds timeout(state_->meet.timeout_ms);
    const auto mesh_timeout =
        state_->meeting ? std::min(timeout, std::chrono::milliseconds(state_->meet.mesh_timeout_ms))
                        : timeout;
    auto options = c10d::ProcessGroupGloo::Options::create(mesh_timeout);
    options->devices = MakeDevices(state_->meet);
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        "group/" + spec.name, state_->meeting ? state_->meeting : state_->store);
    store->setTimeout(mesh_timeout);
    group->process_group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(group->rank), static_cast<int>(group->world), std::move(options));
    group->process_group->setTimeout(timeout);
  }));
  auto collective = std::make_unique<GlooCollective>(std::move(group));
  // So that no rank, least of all the store's, leaves while others still connect.
  TP_RETURN_IF_ERROR(collective->Barrier());
  return std::unique_ptr<Collective>(std::move(collective));
}

}  // namespace tidepool::trainer
