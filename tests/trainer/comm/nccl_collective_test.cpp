// NcclCollective over a table of functions of the test's own: what NCCL is asked for, and that each
// of its failures is told, in its words.
#include "trainer/comm/nccl/nccl_collective.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/host/host_device.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::trainer {
namespace nccl_collective_test {

constexpr int kSystemError = 2, kRemoteError = 6;

// The library's state. Communicators are numbered by the order of their making.
struct Library {
  std::vector<std::string> calls;
  std::string fails;  // this call returns kSystemError
  std::string slow;   // this call returns kInProgress
  int busy = 0;       // so often the state is asked for before a slow call ends
  int state = 0;      // of the communicator
  const void *send = nullptr, *receive = nullptr;
  size_t count = 0;
  int type = -1;
  void* stream = nullptr;
  char comms[4] = {};
  int made = 0;
  // As NCCL's: each abort ends its own kernels first, and then waits for all streams of the
  // process, until `needed` have begun.
  std::atomic<int> aborts{0}, returned{0};
  int needed = 1;
};
Library* library = nullptr;

int Call(const std::string& name) {
  library->calls.push_back(name);
  if (library->fails == name) return kSystemError;
  return library->slow == name ? NcclTable::kInProgress : NcclTable::kSuccess;
}
int Note(const std::string& name, const void* send, void* receive, size_t count) {
  library->send = send;
  library->receive = receive;
  library->count = count;
  return Call(name);
}

NcclTable FakeNccl() {
  NcclTable nccl;
  nccl.get_unique_id = [](NcclId* id) {
    id->bytes[0] = 42;
    return Call("id");
  };
  nccl.comm_init_rank_config = [](void** comm, int ranks, NcclId id, int rank, void*) {
    *comm = &library->comms[library->made++];
    return Call("init " + std::to_string(rank) + "/" + std::to_string(ranks) + " id " +
                std::to_string(id.bytes[0]));
  };
  nccl.comm_get_async_error = [](void*, int* error) {
    *error = library->busy > 0 ? NcclTable::kInProgress : library->state;
    library->busy -= library->busy > 0;
    return NcclTable::kSuccess;
  };
  nccl.comm_finalize = [](void*) { return Call("finalize"); };
  nccl.comm_destroy = [](void*) { return Call("destroy"); };
  nccl.comm_abort = [](void*) {
    Library* const entered = library;
    for (++entered->aborts; entered->aborts < entered->needed;) std::this_thread::yield();
    ++entered->returned;
    return NcclTable::kSuccess;
  };
  nccl.all_gather = [](const void* send, void* receive, size_t count, int type, void*,
                       void* stream) {
    library->type = type;
    library->stream = stream;
    return Note("gather", send, receive, count);
  };
  nccl.reduce_scatter = [](const void* send, void* receive, size_t count, int type, int op, void*,
                           void* stream) {
    EXPECT_EQ(op, NcclTable::kSum);
    library->type = type;
    library->stream = stream;
    return Note("reduce", send, receive, count);
  };
  nccl.group_start = [] { return Call("begin"); };
  nccl.group_end = [] { return Call("end"); };
  nccl.send = [](const void* send, size_t count, int, int peer, void*, void*) {
    return Note("send " + std::to_string(count) + " to " + std::to_string(peer), send,
                const_cast<void*>(library->receive), count);
  };
  nccl.receive = [](void* receive, size_t count, int, int peer, void*, void*) {
    return Note("take " + std::to_string(count) + " of " + std::to_string(peer), library->send,
                receive, count);
  };
  nccl.get_error_string = [](int result) {
    return result == kRemoteError ? "remote process exited" : "unhandled system error";
  };
  nccl.get_last_error = [](void*) { return "socket closed\nat 0x1234"; };
  return nccl;
}

// The host's group of the same ranks: gives everybody rank 0's bytes as a test of another rank sets
// them.
class HostGroup final : public Collective {
 public:
  HostGroup(uint32_t rank, uint32_t world) : rank_(rank), world_(world) {}
  uint32_t rank() const override { return rank_; }
  uint32_t world() const override { return world_; }
  Ticket StartAllGather(const BlockView&) override { return 1; }
  Ticket StartReduceScatter(const BlockView&) override { return 1; }
  Ticket StartAllToAll(const PartsView&) override { return 1; }
  bool Test(Ticket) override { return true; }
  Status Wait(Ticket) override { return {}; }
  Status Barrier() override { return Status(ErrorId::kCollectiveFailed, "the host's barrier"); }
  Status SumDoubles(double* values, uint64_t count) override {
    for (uint64_t i = 0; i < count; ++i) values[i] *= world_;
    return {};
  }
  Status Broadcast(void* bytes, uint64_t) override {
    if (rank_ != 0) static_cast<char*>(bytes)[0] = 42;
    return {};
  }

 private:
  uint32_t rank_, world_;
};

class NcclCollectiveTest : public ::testing::Test {
 protected:
  NcclCollectiveTest()
      : device_({.clock = RealClock()}),
        stream_(std::move(device_.OpenStream()).value()),
        nccl_(FakeNccl()) {
    library = &library_;
  }

  Result<std::unique_ptr<NcclCollective>> Open(uint32_t rank = 1, uint32_t world = 3) {
    NcclSetup setup;
    setup.name = "shared";
    setup.nccl = &nccl_;
    setup.host = std::make_unique<HostGroup>(rank, world);
    setup.stream = stream_.get();
    setup.native_stream = &library_;
    setup.clock = &clock_;
    setup.timeout_ms = 1000;
    setup.doomed = [this] { return doomed_; };
    setup.together = &together_;
    return NcclCollective::Open(std::move(setup));
  }
  bool Called(const std::string& name) const {
    return std::find(library_.calls.begin(), library_.calls.end(), name) != library_.calls.end();
  }

  FakeClock clock_;
  Library library_;
  device::HostDevice device_;
  std::unique_ptr<device::Stream> stream_;
  NcclTable nccl_;
  CommunicatorSet together_{&nccl_, RealClock()};
  Status doomed_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(3 * 10 * 4);
};

TEST_F(NcclCollectiveTest, OperationsAreInPlaceAndInTheStream) {
  auto group = std::move(Open()).value();
  EXPECT_EQ(library_.calls, (std::vector<std::string>{"init 1/3 id 42"}));
  EXPECT_EQ(group->stream(), stream_.get());
  const auto gather = group->StartAllGather({memory_.data(), 10, DType::kF32});
  EXPECT_EQ(library_.send, memory_.data() + 10 * 4);
  EXPECT_EQ(library_.receive, memory_.data());
  EXPECT_EQ(library_.count, 10u);
  EXPECT_EQ(library_.type, NcclTable::kFloat32);
  EXPECT_EQ(library_.stream, &library_);
  const auto reduce = group->StartReduceScatter({memory_.data(), 10, DType::kBF16});
  EXPECT_EQ(library_.send, memory_.data());
  EXPECT_EQ(library_.receive, memory_.data() + 10 * 2);
  EXPECT_EQ(library_.type, NcclTable::kBfloat16);
  EXPECT_FALSE(group->Test(gather)) << "the stream has not come to it";
  while (stream_->Progress(1 << 20)) {
  }
  EXPECT_TRUE(group->Test(gather));
  EXPECT_TRUE(group->Test(reduce));
  EXPECT_TRUE(group->Wait(gather).ok());
  EXPECT_TRUE(group->Wait(reduce).ok());
  double value = 2;
  EXPECT_TRUE(group->SumDoubles(&value, 1).ok());
  EXPECT_EQ(value, 6.0);
  EXPECT_FALSE(group->Barrier().ok()) << "it is the host's";
  group.reset();
  EXPECT_TRUE(Called("finalize") && Called("destroy"));
  EXPECT_EQ(library_.aborts, 0);
}

TEST_F(NcclCollectiveTest, PartsOfAnAllToAllGoTogetherAndEmptyOnesNotAtAll) {
  auto group = std::move(Open()).value();
  std::vector<uint16_t> out(6), in(9);
  PartsView parts{.out = out.data(), .in = in.data()};
  parts.out_elements = {4, 2, 0};
  parts.in_elements = {0, 2, 7};
  parts.dtype = DType::kBF16;
  const auto ticket = group->StartAllToAll(parts);
  EXPECT_EQ(std::vector<std::string>(library_.calls.begin() + 1, library_.calls.end()),
            (std::vector<std::string>{"begin", "send 4 to 0", "send 2 to 1", "take 2 of 1",
                                      "take 7 of 2", "end"}));
  EXPECT_EQ(library_.send, out.data() + 4);
  EXPECT_EQ(library_.receive, in.data() + 2);
  EXPECT_TRUE(group->Wait(ticket).ok());

  library_.fails = "send 2 to 1";
  const auto failed = group->StartAllToAll(parts);
  EXPECT_EQ(library_.calls.back(), "end") << "NCCL is left outside of its group";
  EXPECT_NE(group->Wait(failed).Format().find("ncclSend and ncclRecv in group 'shared'"),
            std::string::npos);
}

// The order of what is in the stream is that of the transfers, whatever is agreed on between them.
TEST_F(NcclCollectiveTest, WhatRanksAgreeOnWhileBlocksAreInFlightIsNotForNccl) {
  auto group = std::move(Open()).value();
  std::vector<float> block(12);
  const BlockView view{block.data(), 4, DType::kF32};
  const auto gather = group->StartAllGather(view);
  const std::vector<std::string> before = library_.calls;
  double sum = 2;
  EXPECT_TRUE(group->SumDoubles(&sum, 1).ok());
  EXPECT_EQ(sum, 6);
  EXPECT_FALSE(group->Barrier().ok()) << "the host's, which fails here";
  EXPECT_EQ(library_.calls, before);
  EXPECT_TRUE(group->Wait(gather).ok());
  EXPECT_TRUE(group->Wait(group->StartReduceScatter(view)).ok());
  EXPECT_EQ(library_.calls.back(), "reduce");
}

// The host's group of this test brings zeros of the other ranks: they have started nothing.
TEST_F(NcclCollectiveTest, RanksOfDifferentOrdersAreToldAtTheEndOfAPass) {
  auto group = std::move(Open()).value();
  EXPECT_TRUE(group->CompareOrder().ok()) << "nobody has started anything";
  BlockView view{memory_.data(), 10, DType::kF32};
  view.name = {.chunk = 5, .place = 1, .of = "h.3.up"};
  const auto gather = group->StartAllGather(view);
  const Status differ = group->CompareOrder();
  EXPECT_EQ(differ.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(differ.Format().find(
                "rank 0 has started nothing more, rank 1 has started all-gather of chunk 5 "
                "(h.3.up), place 1 of its pass (40 bytes)"),
            std::string::npos)
      << differ.Format();
  EXPECT_TRUE(group->Test(gather)) << "nobody waits for what may never end";
  EXPECT_EQ(group->Wait(gather).id(), ErrorId::kCollectiveFailed);
}

TEST_F(NcclCollectiveTest, RankZeroMakesTheIdAndItsFailureIsToldToAll) {
  auto group = std::move(Open(0)).value();
  EXPECT_EQ(library_.calls, (std::vector<std::string>{"id", "init 0/3 id 42"}));
  group.reset();
  library_.calls.clear();
  library_.fails = "id";
  const Status failed = Open(0).status();
  EXPECT_EQ(failed.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(failed.Format().find("unhandled system error"), std::string::npos) << failed.Format();
  EXPECT_EQ(library_.calls, (std::vector<std::string>{"id"}));
}

TEST_F(NcclCollectiveTest, EachFailingCallIsToldInNcclsWordsAndEndsTheGroup) {
  library_.fails = "init 1/3 id 42";
  const Status refused = Open().status();
  EXPECT_EQ(refused.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(
      refused.Format().find("ncclCommInitRankConfig in group 'shared' failed on its rank 1 of 3"),
      std::string::npos);
  EXPECT_NE(refused.Format().find("unhandled system error: socket closed"), std::string::npos)
      << refused.Format();
  for (const std::string call : {"gather", "reduce"}) {
    library_.fails.clear();
    library_.aborts = 0;
    auto group = std::move(Open()).value();
    library_.fails = call;
    const BlockView block{memory_.data(), 10, DType::kF32};
    const auto first =
        call == "gather" ? group->StartAllGather(block) : group->StartReduceScatter(block);
    const size_t calls = library_.calls.size();
    const auto second = group->StartAllGather(block);
    EXPECT_EQ(library_.calls.size(), calls) << "nothing more is started";
    EXPECT_TRUE(group->Test(first) && group->Test(second));
    EXPECT_NE(group->Wait(first).Format().find("unhandled system error: socket closed"),
              std::string::npos);
    EXPECT_EQ(group->Wait(second).id(), ErrorId::kCollectiveFailed);
    group.reset();
    EXPECT_EQ(library_.aborts, 1);
  }
}

TEST_F(NcclCollectiveTest, AnErrorThatComesByItselfIsSeenAndTheStreamIsFreed) {
  auto group = std::move(Open()).value();
  const auto gather = group->StartAllGather({memory_.data(), 10, DType::kF32});
  EXPECT_FALSE(group->Test(gather));
  library_.state = kRemoteError;
  EXPECT_TRUE(group->Test(gather));
  const Status failed = group->Wait(gather);
  EXPECT_NE(failed.Format().find("remote process exited"), std::string::npos);
  EXPECT_EQ(library_.aborts, 0)
      << "whoever knows what else the streams wait for lets that go first";
  group->GiveUp(failed);
  EXPECT_EQ(library_.aborts, 1);
}

TEST_F(NcclCollectiveTest, ALostPeerAbortsTheGroup) {
  auto group = std::move(Open()).value();
  const auto first = group->StartAllGather({memory_.data(), 10, DType::kF32});
  EXPECT_FALSE(group->Test(first));
  doomed_ = Status(ErrorId::kPeerLost, "rank 2 has died");
  clock_.Advance(kNsPerSecond);
  EXPECT_TRUE(group->Test(first));
  const Status lost = group->Wait(first);
  EXPECT_EQ(lost.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(lost.Format().find("rank 2 has died"), std::string::npos);
  group->GiveUp(Status(ErrorId::kPeerLost, "again"));
  group->GiveUp(Status(ErrorId::kPeerLost, "and again"));
  group.reset();
  EXPECT_EQ(library_.aborts, 1);
}

TEST_F(NcclCollectiveTest, AllGroupsOfARankAreAbortedTogetherForOneAbortWaitsForTheOthersKernels) {
  auto first = std::move(Open()).value(), second = std::move(Open()).value();
  const auto gather = second->StartAllGather({memory_.data(), 10, DType::kF32});
  library_.needed = 2;
  first->GiveUp(Status(ErrorId::kPeerLost, "rank 2 has died"));
  EXPECT_EQ(library_.aborts, 2);

  EXPECT_TRUE(second->Test(gather));
  EXPECT_NE(second->Wait(gather).Format().find("another group of this rank has failed"),
            std::string::npos);
  const size_t calls = library_.calls.size();
  EXPECT_FALSE(second->Wait(second->StartReduceScatter({memory_.data(), 10, DType::kF32})).ok());
  EXPECT_EQ(library_.calls.size(), calls) << "its communicator is gone";
}

TEST_F(NcclCollectiveTest, AnAbortThatDoesNotReturnHoldsNobodyUp) {
  CommunicatorSet impatient(&nccl_, RealClock(), kNsPerMs);
  impatient.Add(&library_.comms[0]);
  library_.needed = 2;
  impatient.AbortAll();
  EXPECT_FALSE(impatient.Has(&library_.comms[0]));
  while (library_.aborts < 1) std::this_thread::yield();  // it stands in the library now
  impatient.Add(&library_.comms[1]);
  impatient.AbortAll();  // lets the thread of the first go, before the library does
  while (library_.returned < 2) std::this_thread::yield();
}

TEST_F(NcclCollectiveTest, ASlowCallIsWaitedForWhileThePeersAreThere) {
  library_.slow = "init 1/3 id 42";
  library_.busy = 1000;
  auto group = std::move(Open()).value();
  EXPECT_EQ(library_.busy, 0);
  library_.slow = "gather";
  library_.busy = 5;
  const auto gather = group->StartAllGather({memory_.data(), 10, DType::kF32});
  EXPECT_EQ(library_.busy, 0);
  EXPECT_FALSE(group->Test(gather));
  library_.busy = 1'000'000'000;
  const auto late = group->StartAllGather({memory_.data(), 10, DType::kF32});
  EXPECT_TRUE(group->Test(late));
  EXPECT_NE(group->Wait(late).Format().find("did not end within 1000 ms"), std::string::npos);
}

}  // namespace nccl_collective_test
}  // namespace tidepool::trainer
