// AdminChanges: the paths of the admin socket that change something: their parameters, who may use
// them, and the messages to the serve loop, or to the main thread, which reloads the configuration.
//
// The admin thread only. The serve loop makes a change between two turns, or not at all; this
// thread waits for its answer for a bounded time. GET never changes anything: these paths take PUT,
// POST and DELETE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/event_queue.h"
#include "memserver/admin/admin_answer.h"
#include "memserver/admin/request_target.h"
#include "memserver/control/mailbox.h"

namespace tidepool::memserver {

// A request and its caller.
struct AdminRequest {
  std::string_view method, target, body = {};
  AdminCaller caller = {};
};

// The queues that changes are sent to; both outlive the AdminChanges that use them.
struct AdminMail {
  EventQueue<ControlEvent>* to_loop = nullptr;
  EventQueue<MainCommand>* to_main = nullptr;
};

// Ok if the caller has at least this level. Errors: kNotOwner.
Status CheckLevel(const AdminCaller& caller, AdminLevel least);

class AdminChanges {
 public:
  static constexpr int64_t kWaitMs = 2000;  // less than memctl waits for the answer

  explicit AdminChanges(AdminMail mail) : mail_(mail) {}

  // True if this method changes something on the path.
  static bool Takes(std::string_view method, const RequestTarget& target);
  // The methods that change something on the path, as in an Allow header; empty if there are none.
  static std::string MethodsOf(const RequestTarget& target);
  // "PUT /v1/log" and so on, for people.
  static std::vector<std::string> Endpoints();
  // Executes the request. Requires that Takes is true of its method.
  AdminAnswer Apply(const AdminRequest& request, const RequestTarget& target,
                    const Snapshot& snapshot);

 private:
  const AdminMail mail_;
};

}  // namespace tidepool::memserver
