// AdminApi: maps a request on the admin socket to its answer; uses no socket and no HTTP library.
//
// The admin thread only. Read paths are in admin_routes.h, paths that change something in
// admin_changes.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "memserver/admin/admin_answer.h"
#include "memserver/admin/admin_changes.h"
#include "memserver/admin/reports/report.h"
#include "memserver/admin/snapshot_source.h"

namespace tidepool::memserver {

class AdminApi {
 public:
  // `source` must outlive this object.
  AdminApi(ServerFacts facts, SnapshotSource* source, AdminMail mail)
      : facts_(std::move(facts)), source_(source), changes_(mail) {}

  // Never fails: an error becomes a problem document. May wait for the loop, as SnapshotSource::Get
  // and AdminChanges do.
  AdminAnswer Answer(const AdminRequest& request);
  // "GET /v1/jobs/{id or name}" and so on: all endpoints, for people.
  static std::vector<std::string> Endpoints();
  const ServerFacts& facts() const { return facts_; }

 private:
  AdminAnswer Change(const AdminRequest& request, const RequestTarget& target);
  const ServerFacts facts_;
  SnapshotSource* const source_;
  AdminChanges changes_;
};

}  // namespace tidepool::memserver
