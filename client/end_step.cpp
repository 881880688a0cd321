// How MemClient ends a step: statements about it first, then the end itself; and how a job begins
// after a given step.
#include <vector>

#include "base/point.h"
#include "client/mem_client.h"
#include "shm/messages.h"
#include "shm/step_numbers.h"

namespace tidepool::client {

Result<Ticket> MemClient::StartEndStep(const StepEnd& end) {
  shm::EndStepRequest request{};
  request.op = static_cast<uint32_t>(shm::Op::kEndStep);
  request.learning_rate = end.learning_rate;
  request.version = end.version;
  request.data_cursor = end.data_cursor;
  request.loss_scale = end.loss_scale;
  request.scaler_steps = end.scaler_steps;
  request.random_state = end.random_state;

  TP_RETURN_IF_ERROR(StartNumbers(end));
  auto ticket = Start(shm::AsRequest(request));
  if (ticket.ok()) numbered_end_ = *ticket;
  TP_POINT("client.end_step_sent");
  return ticket;
}

// Sends what must precede the end of a step, if anything.
Status MemClient::StartNumbers(const StepEnd& end) {
  TP_RETURN_IF_ERROR(Usable());
  const bool known = session_.port->protocol() >= shm::kAbiNumbers;
  if (!known && !end.groups.empty()) {
    return Status(ErrorId::kAbiMismatch,
                  "memserver is of a release that takes one learning rate a step, and no other "
                  "numbers of parameter groups")
        .Fix("start the memserver of this release; it goes on with the job");
  }

  std::vector<shm::Request> requests;
  if (known && !end.untouched.empty())
    requests = shm::UntouchedRequestsOf(end.untouched, end.untouched.size() * 64, end.version);
  if (requests.size() > shm::kUntouchedRequestsMax) {
    return Status(ErrorId::kUsageError,
                  "too many parameters, in too many places, were reached by "
                  "no backward of this step");
  }
  for (const GroupStep& group : end.groups)
    requests.push_back(shm::GroupNumbersRequestOf(group.group, group.numbers, end.version));
  if (end.facts && session_.port->protocol() >= shm::kAbiFacts)
    requests.push_back(shm::StepFactsRequestOf(*end.facts, end.version));

  for (const shm::Request& request : requests) {
    TP_ASSIGN_OR_RETURN(const Ticket ticket, Start(request));
    numbers_.push_back(ticket);
    TP_POINT("client.numbers_sent");
  }
  return Status();
}

Result<Ticket> MemClient::StartBeginAt(const BeginPoint& point) {
  TP_RETURN_IF_ERROR(Usable());
  if (session_.port->protocol() < shm::kAbiStates) {
    return Status(ErrorId::kAbiMismatch,
                  "memserver is of a release in which every job begins at step 1")
        .Fix("start the memserver of this release");
  }

  shm::BeginAtRequest request{};
  request.op = static_cast<uint32_t>(shm::Op::kBeginAt);
  request.loss_scale = point.loss_scale;
  request.version = point.version;
  request.optimizer_step = point.optimizer_step;
  request.data_cursor = point.data_cursor;
  request.random_state = point.random_state;
  request.scaler_steps = point.scaler_steps;
  auto ticket = Start(shm::AsRequest(request));
  TP_POINT("client.begin_sent");
  return ticket;
}

}  // namespace tidepool::client
