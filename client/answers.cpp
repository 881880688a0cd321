#include "client/answers.h"

#include <array>
#include <string>

namespace tidepool::client {
namespace {

const char* NameOf(shm::Op op) {
  // By number, from 0.
  constexpr std::array<const char*, shm::kOpMax + 1> kNames{"?",
                                                            "put weights of",
                                                            "fetch",
                                                            "submit gradient of",
                                                            "end step",
                                                            "claim",
                                                            "numbers of step",
                                                            "untouched of step",
                                                            "facts of step",
                                                            "begin at step"};
  return kNames[static_cast<uint32_t>(op)];
}

// The user's hyperparameters, which only the server had checked.
Status WhyNoStep(const shm::EndStepRequest& end) {
  return Status(ErrorId::kConfigBadValue, "a step cannot be taken with learning rate " +
                                              std::to_string(end.learning_rate) +
                                              " and loss scale " + std::to_string(end.loss_scale))
      .Where("the end of step " + std::to_string(end.version + 1))
      .Why("memserver takes a finite learning rate from 0, and a finite loss scale above 0")
      .Fix("correct the learning rate and its schedule (--lr, --min-lr), or the loss scale");
}

Status WhyNoBegin() {
  return Status(ErrorId::kConfigBadValue,
                "this memserver begins a job behind the step of a checkpoint only where all its "
                "states are in the host pool")
      .Where("the job's states on NVMe or on a GPU")
      .Why("it is of an earlier release")
      .Fix("start the memserver of this release");
}

}  // namespace

std::string Described(const shm::Request& request) {
  const auto op = static_cast<shm::Op>(request.op);
  const bool of_chunk =
      op != shm::Op::kEndStep && op != shm::Op::kBeginAt && !shm::IsStepNumbers(request);
  return NameOf(op) + (of_chunk ? " chunk " + std::to_string(request.chunk) : std::string());
}

Result<Outcome> OutcomeOf(const shm::Completion& completion, const shm::Request& request,
                          JobId job) {
  if (completion.error == 0) {
    return Outcome{completion.version, completion.bytes, completion.grad_norm,
                   completion.skipped != 0};
  }

  const ErrorId id =
      completion.error <= UINT16_MAX ? static_cast<ErrorId>(completion.error) : ErrorId::kInternal;
  if (id == ErrorId::kConfigBadValue && request.op == static_cast<uint32_t>(shm::Op::kEndStep))
    return WhyNoStep(shm::AsEndStep(request));
  if (id == ErrorId::kConfigBadValue && request.op == static_cast<uint32_t>(shm::Op::kBeginAt))
    return WhyNoBegin();
  return Status(id, "memserver answered '" + Described(request) + "' with " + ErrorEntryOf(id).name)
      .Where("job " + std::to_string(job) + ", version " + std::to_string(request.version));
}

}  // namespace tidepool::client
