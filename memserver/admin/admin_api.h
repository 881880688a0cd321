// AdminApi: which answer belongs to which request on the admin socket; knows no socket and no HTTP library.
//
// The admin thread only. Nothing here changes the daemon: every path is read-only, and other methods than GET and HEAD are refused.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "memserver/admin/report.h"
#include "memserver/admin/snapshot_source.h"

namespace tidepool::memserver {

struct AdminAnswer {
  unsigned status = 200;                          // of HTTP
  const char* content_type = "application/json";  // or application/problem+json
  std::string body;
  std::string allow;  // value of the Allow header, empty for none
};

class AdminApi {
 public:
  // /livez reports a dead loop only after this time: a restart loses more than a slow machine does.
  static constexpr double kDeadSeconds = 10;
  // /readyz and the reports call the loop silent from here on.
  static constexpr double kSilentSeconds = 1;
  static constexpr uint64_t kChunksPerPage = 1'000, kChunksPerPageMax = 10'000;

  // `source` must outlive this object.
  AdminApi(ServerFacts facts, SnapshotSource* source) : facts_(std::move(facts)), source_(source) {}

  // Never fails: what is wrong becomes a problem document. May wait for the loop, as SnapshotSource::Get does.
  AdminAnswer Answer(std::string_view method, std::string_view target);
  const ServerFacts& facts() const { return facts_; }

 private:
  const ServerFacts facts_;
  SnapshotSource* const source_;
};

// An RFC 9457 problem document: type, title, status, detail, and our code and remedy.
AdminAnswer Problem(unsigned http_status, const Status& error);

}  // namespace tidepool::memserver
