// What a rank is told when memserver answers a request with an error of the catalogue.
#include "client/answers.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/error_catalog.h"

namespace tidepool::client {
namespace answers_test {

shm::Request RequestOf(shm::Op op) {
  shm::Request request{};
  request.op = static_cast<uint32_t>(op);
  request.chunk = 7;
  request.version = 12;
  return request;
}

struct Answered {
  shm::Op op;
  ErrorId id;
  const char* first_line;
};

// These come as numbers through the ring; their words are made here.
TEST(Answers, NameTheRequestTheErrorAndWhatToDo) {
  const std::array<Answered, 6> kAnswers{{
      {shm::Op::kFetch, ErrorId::kVersionGone,
       "error[TP3015]: memserver answered 'fetch chunk 7' with VersionGone"},
      {shm::Op::kSubmitGradient, ErrorId::kChunkFrozen,
       "error[TP3017]: memserver answered 'submit gradient of chunk 7' with ChunkFrozen"},
      {shm::Op::kPutWeights, ErrorId::kUploadLost,
       "error[TP3018]: memserver answered 'put weights of chunk 7' with UploadLost"},
      {shm::Op::kClaimFrozen, ErrorId::kContentMismatch,
       "error[TP3019]: memserver answered 'claim chunk 7' with ContentMismatch"},
      {shm::Op::kEndStep, ErrorId::kNonFinite,
       "error[TP6001]: memserver answered 'end step' with NonFinite"},
      {shm::Op::kFetch, ErrorId::kPeerLost,
       "error[TP3012]: memserver answered 'fetch chunk 7' with PeerLost"},
  }};
  for (const Answered& answered : kAnswers) {
    const shm::Request request = RequestOf(answered.op);
    shm::Completion completion{};
    completion.op = request.op;
    completion.error = static_cast<uint32_t>(answered.id);
    const Status told = OutcomeOf(completion, request, 3).status();
    EXPECT_EQ(told.id(), answered.id);
    EXPECT_EQ(told.Format(),
              std::string(answered.first_line) +
                  "\n   where: job 3, version 12\n   fix:   " + ErrorEntryOf(answered.id).advice);
  }
}

TEST(Answers, EveryOperationHasAName) {
  for (uint32_t op = shm::kOpMin; op <= shm::kOpMax; ++op) {
    const std::string text = Described(RequestOf(static_cast<shm::Op>(op)));
    EXPECT_GT(text.size(), 3u) << op;
    EXPECT_NE(text.front(), '?') << op;
  }
  EXPECT_EQ(Described(RequestOf(shm::Op::kStepFacts)), "facts of step");
  EXPECT_EQ(Described(RequestOf(shm::Op::kBeginAt)), "begin at step");
}

}  // namespace answers_test
}  // namespace tidepool::client
