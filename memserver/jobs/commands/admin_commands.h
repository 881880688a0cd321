// AdminCommands: executes what admins ask for through the admin socket, and answers their tickets.
// One thread (the serve loop). It owns no state: it checks what an admin may change, and has the
// owner change it. A job that the caller may not see is treated as absent.
#pragma once

#include <string>

#include "memserver/jobs/admission/admission_queue.h"
#include "memserver/jobs/admission/demotion_desk.h"
#include "memserver/jobs/desk_context.h"
#include "memserver/jobs/sessions/session_slots.h"

namespace tidepool::memserver {

class AdminCommands {
 public:
  // The owners whose state commands change.
  struct Owners {
    AdminSettings* settings;
    AdmissionQueue* queue;
    DemotionDesk* demotions;
    SessionSlots* slots;
    JobLife* life;
  };
  AdminCommands(const DeskContext& context, const Owners& owners)
      : context_(context), owners_(owners) {}

  // Executes the command. The answer is a CommandDone.
  void Execute(AdminCommand event);
  // Gives every job and every waiting rank the quota of the quota book.
  void ApplyQuotas();

 private:
  Result<Job*> JobFor(const AdminCaller& caller, const std::string& who) const;
  Status Do(const AdminCaller& caller, const SetJobQuota& command);
  Status Do(const AdminCaller& caller, const SuspendJob& command);
  Status Do(const AdminCaller& caller, const ReleaseJob& command);
  Status Do(const AdminCaller& caller, const EvictJob& command);
  Status Do(const AdminCaller& caller, const RecordSpans& command);
  Status Do(const AdminCaller& caller, const DrainJobs& command);
  Status Do(const AdminCaller& caller, const ChangeLogLevel& command);
  Status Do(const AdminCaller& caller, const MuteCheck& command);
  Status Do(const AdminCaller& caller, const StartScrub& command);
  Status Do(const AdminCaller& caller, const ApplySettings& command);
  Status CheckHasNvme() const;

  const DeskContext context_;
  const Owners owners_;
};

}  // namespace tidepool::memserver
