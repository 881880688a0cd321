// The places in kept memory for the names of servers, while processes that had them linger.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "base/units.h"
#include "memserver/control/peer_identity.h"
#include "memserver/former_servers.h"
#include "memserver/residency/kept/kept_records.h"
#include "tests/fakes/sleeper.h"

namespace tidepool::memserver {
namespace server_places_test {

bool Readable(int fd, int64_t limit_ms) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit_ms)) == 1;
}

std::vector<NotedServer> ServersIn(const KeptIndex& index) {
  std::vector<std::byte> image(kIndexBytes);
  EXPECT_EQ(pread(index.fd(), image.data(), image.size(), 0), static_cast<ssize_t>(image.size()));
  return ReadIndex(image).value().servers;
}

// A new server while so many before it have not ended, and whom a kept job waits for.
class AllPlacesTaken : public ::testing::Test {
 protected:
  AllPlacesTaken() {
    HostPoolOptions options;
    options.bytes = kMiB;
    kept_.pool = HostPool::Reserve(options, {uint64_t{1} << 40, uint64_t{1} << 40, "test"}).value();
    kept_.index = KeptIndex::Create({8192, 4096, 64 * kKiB}, 5).value();
    EXPECT_TRUE(kept_.pool->Take(std::array{kPageBytes}, &records_));
    record().gpu_servers.store(0);
    kept_.contents.jobs.push_back(
        {.job = 1, .records_offset = records_[0].offset, .records_bytes = kPageBytes});
    for (const Sleeper& sleeper : sleepers_) kept_.index->NoteServer(sleeper.name());
    kept_.contents.servers = ServersIn(*kept_.index);
    former_ = FormerServers::Watch(kept_.contents.servers).value();
    EXPECT_EQ(former_.living(), ~uint32_t{0});
  }
  JobRecord& record() { return *reinterpret_cast<JobRecord*>(records_[0].data); }
  Result<uint32_t> TakeOne() { return TakePlace(&former_, kept_, OwnProcess().value()); }

  KeptMemory kept_;
  std::vector<Extent> records_;
  std::array<Sleeper, kServersNoted> sleepers_;
  FormerServers former_;
};

// A user whose saves hang in a file system keeps killed servers from ending; nobody else may be
// kept from a start by that.
TEST_F(AllPlacesTaken, OneThatCopiedForNobodyGivesUpItsPlace) {
  record().gpu_servers.store(~BitOf(7));
  auto place = TakeOne();
  ASSERT_TRUE(place.ok()) << place.status().Format();
  EXPECT_EQ(*place, BitOf(7));
  EXPECT_EQ(ServersIn(*kept_.index)[7].process.pid, getpid());
  EXPECT_EQ(former_.living(), ~BitOf(7)) << "its end is not this server's";
  sleepers_[7].Kill();
  ASSERT_FALSE(Readable(former_.event_fd(), 50));
}

TEST_F(AllPlacesTaken, WhereEachMayStillCopyTheStartSaysWhoTheyAre) {
  record().gpu_servers.store(~uint32_t{0});
  auto place = TakeOne();
  ASSERT_EQ(place.status().id(), ErrorId::kNotReady);
  EXPECT_NE(place.status().why().find(std::to_string(sleepers_[31].name().pid)), std::string::npos)
      << place.status().Format();
  EXPECT_EQ(former_.living(), ~uint32_t{0});
}

}  // namespace server_places_test
}  // namespace tidepool::memserver
