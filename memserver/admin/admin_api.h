// AdminApi: which answer belongs to which request on the admin socket; knows no socket and no HTTP
// library.
//
// The admin thread only. Paths that change something are in admin_changes.cpp; GET and HEAD change
// nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "memserver/admin/admin_answer.h"
#include "memserver/admin/admin_changes.h"
#include "memserver/admin/report.h"
#include "memserver/admin/snapshot_source.h"

namespace tidepool::memserver {

// What was logged behind number *last, `most` lines at most, as objects one a line; *last becomes
// the number of the last of them. Numbers come first in each line, so that a reader knows where to
// go on. Any thread.
std::string EventLines(uint64_t* last, uint64_t most);

class AdminApi {
 public:
  // /livez reports a dead loop only after this time: a restart loses more than a slow machine does.
  static constexpr double kDeadSeconds = 10;
  // /readyz and the reports call the loop silent from here on.
  static constexpr double kSilentSeconds = 1;
  static constexpr uint64_t kChunksPerPage = 1'000, kChunksPerPageMax = 10'000;

  // `source` must outlive this object.
  AdminApi(ServerFacts facts, SnapshotSource* source, AdminMail mail)
      : facts_(std::move(facts)), source_(source), changes_(mail) {}

  // Never fails: what is wrong becomes a problem document. May wait for the loop, as
  // SnapshotSource::Get and AdminChanges do.
  AdminAnswer Answer(const AdminRequest& request);
  // "GET /v1/jobs/{id or name}" and so on: all that there are, for people.
  static std::vector<std::string> Endpoints();
  const ServerFacts& facts() const { return facts_; }

 private:
  AdminAnswer Change(const AdminRequest& request, const RequestTarget& target);
  const ServerFacts facts_;
  SnapshotSource* const source_;
  AdminChanges changes_;
};

}  // namespace tidepool::memserver
