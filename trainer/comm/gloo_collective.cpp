#include "trainer/comm/gloo_collective.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/check.h"
#include "trainer/comm/meeting/guarded.h"
#include "trainer/comm/operation_check.h"
#include "trainer/comm/operation_thread.h"
#include "trainer/comm/rank_sum.h"

namespace tidepool::trainer {
namespace {

// The interfaces over which Gloo's threads connect. A run on one machine stays on the loopback
// interface, where no firewall interferes.
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
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group;  // its threads call the one above

  std::string Doing(const std::string& name) const {
    return name + " in group '" + group + "' failed on its rank " + std::to_string(rank) + " of " +
           std::to_string(world);
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

  // `start` creates the pieces of operation `number`, on the thread; each piece reports its end.
  // After an error all are awaited: none may touch the caller's memory afterwards. (They end at
  // once, because Gloo closes a group's connections at its first error.)
  ThreadOperation::Begun Begin(const std::string& name, uint64_t number,
                               const std::function<void(Pieces*)>& start) {
    Pieces pieces;
    ThreadOperation::Begun begun;
    begun.status = Guarded(Doing(name), [&] { start(&pieces); });
    begun.pieces = static_cast<uint32_t>(pieces.size());

    for (const auto& piece : pieces) {
      piece->getFuture()->addCallback([this, name, number](c10::ivalue::Future& ended) {
        thread.PieceEnded(number, Guarded(Doing(name), [&] {
                            if (ended.hasError()) std::rethrow_exception(ended.exception_ptr());
                          }));
      });
    }
    return begun;
  }

  // What an operation is, and how it is carried out.
  struct Plan {
    OperationTag tag{};
    std::vector<uint64_t> out, in{};  // bytes to and from each rank
    std::function<void(std::byte*, Pieces*)> start{};
    uint64_t part_bytes = 0;
    std::function<void(std::byte*)> finish{};
  };
  Plan PlanOf(OperationKind kind, const OperationName& name, uint64_t bytes) const {
    return {.tag = TagOf(kind, name),
            .out = std::vector<uint64_t>(world, bytes),
            .in = std::vector<uint64_t>(world, bytes)};
  }

  // c10d pairs pieces by their order, and a pair of different sizes can end the process. So the
  // ranks first gather each other's statements. The order of all pieces is that of the tickets;
  // within one ticket the statements come before the bytes.
  Ticket Start(Plan plan) {
    const std::string name = plan.tag.Text();
    const auto check = std::make_shared<OperationCheck>(plan.tag, plan.out, plan.in);
    ThreadOperation operation{.part_bytes = plan.part_bytes, .finish = std::move(plan.finish)};

    operation.ask = [this, name, check](uint64_t number) {
      return Begin(name, number, [&](Pieces* pieces) {
        at::Tensor own = ByteTensor(check->own(), check->statement_bytes()),
                   all = ByteTensor(check->all(), world * check->statement_bytes());
        pieces->push_back(process_group->_allgather_base(all, own));
      });
    };

    operation.judge = [this, name, check] {
      const Status verdict = check->Verdict();
      return verdict.ok() ? verdict
                          : Status(ErrorId::kCollectiveFailed, Doing(name)).Why(verdict.what());
    };

    operation.begin = [this, name, start = std::move(plan.start)](uint64_t number,
                                                                  std::byte* parts) {
      return Begin(name, number, [&](Pieces* pieces) {
        if (start) start(parts, pieces);
      });
    };

    const Ticket ticket = thread.Start(std::move(operation));
    in_flight.insert(ticket);
    return ticket;
  }

  // Waits in slices and calls `doomed` in between: Gloo may not notice that the run has ended.
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

Result<std::unique_ptr<Collective>> GlooCollective::Connect(const Rendezvous& meet,
                                                            const GlooPlace& place,
                                                            c10d::Store* store) {
  auto group = std::make_unique<State>();
  group->group = place.group;
  group->rank = place.rank;
  group->world = place.world;
  group->doomed = meet.doomed;
  group->stuck = meet.stuck;

  TP_RETURN_IF_ERROR(Guarded(group->Doing("meeting the other ranks"), [&] {
    const std::chrono::milliseconds mesh_timeout(place.mesh_timeout_ms);
    auto options = c10d::ProcessGroupGloo::Options::create(mesh_timeout);
    options->devices = MakeDevices(meet);
    store->setTimeout(mesh_timeout);

    group->process_group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store),
        static_cast<int>(group->rank), static_cast<int>(group->world), std::move(options));
    group->process_group->setTimeout(std::chrono::milliseconds(place.timeout_ms));
  }));

  std::unique_ptr<GlooCollective> collective(new GlooCollective(std::move(group)));
  // Keeps every rank, above all the store's, from leaving while others still connect.
  TP_RETURN_IF_ERROR(collective->Barrier());
  return std::unique_ptr<Collective>(std::move(collective));
}

GlooCollective::~GlooCollective() {
  // A failure has no one to be reported to.
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
  State::Plan plan = state_->PlanOf(OperationKind::kAllGather, block.name, block.shard_bytes());
  plan.start = [state = state_.get(), block](std::byte*, State::Pieces* pieces) {
    if (block.shard_elements == 0) return;
    for (uint32_t root = 0; root < state->world; ++root) {
      pieces->push_back(state->Broadcast(state->ShardOf(block, root), block.shard_bytes(), root));
    }
  };
  return state_->Start(std::move(plan));
}

Collective::Ticket GlooCollective::StartReduceScatter(const BlockView& block) {
  const uint64_t size = state_->world * block.shard_bytes();
  State::Plan plan = state_->PlanOf(OperationKind::kReduceScatter, block.name, block.shard_bytes());
  plan.part_bytes = size;
  plan.start = [state = state_.get(), block, size](std::byte* parts, State::Pieces* pieces) {
    if (size == 0) return;
    at::Tensor input = ByteTensor(block.data, size), output = ByteTensor(parts, size);
    std::vector<int64_t> equal_counts;
    pieces->push_back(
        state->process_group->alltoall_base(output, input, equal_counts, equal_counts));
  };

  plan.finish = [state = state_.get(), block](std::byte* parts) {
    if (parts == nullptr) return;
    SumInRankOrder(parts, state->world, block.shard_elements, block.dtype,
                   state->ShardOf(block, state->rank));
  };
  return state_->Start(std::move(plan));
}

Collective::Ticket GlooCollective::StartAllToAll(const PartsView& parts) {
  State::Plan plan = state_->PlanOf(OperationKind::kAllToAll, parts.name, 0);
  for (uint32_t rank = 0; rank < state_->world; ++rank) {
    plan.out[rank] = parts.out_elements[rank] * BytesOf(parts.dtype);
    plan.in[rank] = parts.in_elements[rank] * BytesOf(parts.dtype);
  }

  plan.start = [state = state_.get(), parts, out = plan.out, in = plan.in](std::byte*,
                                                                           State::Pieces* pieces) {
    // Gloo wants an address for an empty buffer, too.
    static std::byte nothing;
    void* const from = parts.out_bytes() > 0 ? const_cast<void*>(parts.out) : &nothing;
    void* const to = parts.in_bytes() > 0 ? parts.in : &nothing;
    at::Tensor input = ByteTensor(from, parts.out_bytes()),
               output = ByteTensor(to, parts.in_bytes());
    std::vector<int64_t> out_splits(out.begin(), out.end()), in_splits(in.begin(), in.end());
    pieces->push_back(state->process_group->alltoall_base(output, input, in_splits, out_splits));
  };
  return state_->Start(std::move(plan));
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
  // Every rank's statement passes through all ranks, so gathering them is a barrier.
  return Wait(state_->Start(state_->PlanOf(OperationKind::kBarrier, {}, 0)));
}

Status GlooCollective::SumDoubles(double* values, uint64_t count) {
  const uint32_t world = state_->world;
  std::vector<double> all(world * count);
  std::copy_n(values, count, all.data() + state_->rank * count);
  // One double is moved as two fp32 elements: the bytes do not change.
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
  State::Plan plan = state_->PlanOf(OperationKind::kBroadcast, {}, size);
  plan.start = [state = state_.get(), bytes, size](std::byte*, State::Pieces* pieces) {
    pieces->push_back(state->Broadcast(bytes, size, 0));
  };
  return Wait(state_->Start(std::move(plan)));
}

}  // namespace tidepool::trainer
