// AdminChanges: the paths of the admin socket that change something: what each takes, who may ask,
// and the mail to the serve loop, or to the main thread, which reads the configuration again.
//
// The admin thread only. A change is made by the serve loop between two turns, or not at all; this
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

// A request, and whose it is.
struct AdminRequest {
  std::string_view method, target, body = {};
  AdminCaller caller = {};
};

// The queues that changes go to; both outlive the AdminChanges that use them.
struct AdminMail {
  EventQueue<ControlEvent>* to_loop = nullptr;
  EventQueue<MainCommand>* to_main = nullptr;
};

// Errors: kNotOwner.
Status CheckLevel(const AdminCaller& caller, AdminLevel least);

class AdminChanges {
 public:
  static constexpr int64_t kWaitMs = 2000;  // less than memctl waits for the answer

  explicit AdminChanges(AdminMail mail) : mail_(mail) {}

  // Does this method change something on the path?
  static bool Takes(std::string_view method, const RequestTarget& target);
  // The methods that do, as they stand in an Allow header; empty where there is none.
  static std::string MethodsOf(const RequestTarget& target);
  // "PUT /v1/log" and so on, for people.
  static std::vector<std::string> Endpoints();
  // Does what the request asks for. Requires that it Takes the method.
  AdminAnswer Apply(const AdminRequest& request, const RequestTarget& target,
                    const Snapshot& snapshot);

 private:
  const AdminMail mail_;
};

}  // namespace tidepool::memserver
