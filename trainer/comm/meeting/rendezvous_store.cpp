#include "trainer/comm/meeting/rendezvous_store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include <sys/random.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/check.h"
#include "base/formats/content_hash.h"
#include "base/unique_fd.h"
#include "trainer/comm/gloo_collective.h"
#include "trainer/comm/meeting/guarded.h"
#include "trainer/comm/meeting/meeting_port.h"
#include "trainer/comm/solo_collective.h"

namespace tidepool::trainer {
namespace {

// Key of the number of disbanded meetings of this store.
constexpr const char* kMeetings = "meetings";

// torch 2.11 records a new group in its flight recorder before taking the recorder's lock, so two
// threads with a group each could crash the process; it also takes a back trace per operation. A
// user's own setting of the variable wins.
void SwitchFlightRecorderOff() {
  [[maybe_unused]] static const int once = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

std::string Address(const Rendezvous& meet) {
  return meet.host + ":" + std::to_string(meet.port);
}

// What a rank leaves in the store: the hash of what it trains, and an id of its process.
std::vector<uint8_t> SignOf(const Rendezvous& meet) {
  std::vector<uint8_t> sign(sizeof meet.spec + sizeof(uint64_t));
  std::memcpy(sign.data(), &meet.spec, sizeof meet.spec);
  // Without an id, a meeting that mixes two incarnations of a rank only ends by a time-out.
  static_cast<void>(getrandom(sign.data() + sizeof meet.spec, sizeof(uint64_t), 0));
  return sign;
}

}  // namespace

struct RendezvousStore::State {
  Rendezvous meet;
  // The connection, and on the serving rank the server; null in a run of one rank.
  c10::intrusive_ptr<c10d::TCPStore> server;
  c10::intrusive_ptr<c10d::Store> store;    // the same, under the run's prefix
  c10::intrusive_ptr<c10d::Store> meeting;  // the same, under the meeting's; null before Gather

  // All ranks are here. From now on the meeting's prefix includes all process ids, so leftovers of
  // a former meeting are not found.
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
      options.waitWorkers = false;  // each group waits for its own members

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
  // Missing ranks are queried only now and then: hundreds of ranks that query each other one by one
  // would keep the store busy.
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
  // A failure is ignored: if the store is gone, the next one counts anew.
  static_cast<void>(Guarded("disbanding", [&] { state_->store->add(kMeetings, 1); }));
}

Result<std::unique_ptr<Collective>> RendezvousStore::MakeGroup(const GroupSpec& spec) {
  const Rendezvous& meet = state_->meet;
  const auto position = std::find(spec.ranks.begin(), spec.ranks.end(), meet.rank);
  TP_CHECK(position != spec.ranks.end(), "this rank is a member of the group that it makes");
  if (spec.ranks.size() == 1)
    return std::unique_ptr<Collective>(std::make_unique<SoloCollective>());

  GlooPlace place;
  place.group = spec.name;
  place.rank = static_cast<uint32_t>(position - spec.ranks.begin());
  place.world = static_cast<uint32_t>(spec.ranks.size());
  place.timeout_ms = place.mesh_timeout_ms = meet.timeout_ms;
  if (state_->meeting) place.mesh_timeout_ms = std::min(meet.timeout_ms, meet.mesh_timeout_ms);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      "group/" + spec.name, state_->meeting ? state_->meeting : state_->store);
  return GlooCollective::Connect(meet, place, store.get());
}

}  // namespace tidepool::trainer
