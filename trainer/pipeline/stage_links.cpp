#include "trainer/pipeline/stage_links.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

using Kind = StageMessage::Kind;

// The link of a column that carries this message.
LinkSpec SpecOf(const StageCuts& cuts, uint32_t column, const StageMessage& message) {
  const auto rank_of = [&](uint32_t stage) { return cuts.RankOf(stage, column); };
  const Rank here = rank_of(message.stage), first = rank_of(0), last = rank_of(cuts.stages() - 1);

  LinkSpec spec;
  switch (message.kind) {
    case Kind::kOutput: spec = {"stages", here, rank_of(message.stage + 1)}; break;
    case Kind::kGradient: spec = {"stages", here, rank_of(message.stage - 1)}; break;
    case Kind::kHead: spec = {"ends", first, last}; break;
    case Kind::kHeadPart: spec = {"ends", last, first}; break;
  }
  spec.name += " " + std::to_string(spec.from) + " to " + std::to_string(spec.to);
  return spec;
}

bool SameLink(const LinkSpec& a, const LinkSpec& b) {
  return a.name == b.name;
}

}  // namespace

std::string StageMessage::Name() const {
  const std::string of = std::to_string(stage) + ", micro-batch " + std::to_string(micro_batch);
  switch (kind) {
    case Kind::kOutput: return "output of stage " + of;
    case Kind::kGradient: return "gradient of stage " + of;
    case Kind::kHead: return "token embedding";
    case Kind::kHeadPart: break;
  }
  return "embedding's gradient, micro-batch " + std::to_string(micro_batch);
}

std::vector<LinkSpec> LinksOf(const StageCuts& cuts) {
  std::vector<LinkSpec> links;
  const auto add = [&](uint32_t column, const StageMessage& message) {
    LinkSpec spec = SpecOf(cuts, column, message);
    const bool is_there = std::any_of(links.begin(), links.end(),
                                      [&](const LinkSpec& one) { return SameLink(one, spec); });
    if (spec.from != spec.to && !is_there) links.push_back(std::move(spec));
  };

  for (uint32_t column = 0; column < cuts.columns; ++column) {
    for (uint32_t stage = 0; stage + 1 < cuts.stages(); ++stage) {
      add(column, {.kind = Kind::kOutput, .stage = stage});
      add(column, {.kind = Kind::kGradient, .stage = stage + 1});
    }
    if (!cuts.is_tied) continue;
    add(column, {.kind = Kind::kHead});
    add(column, {.kind = Kind::kHeadPart});
  }
  return links;
}

StageLinks::StageLinks(const StagePlan* plan, std::vector<RankLink*> links)
    : plan_(*plan), specs_(LinksOf(plan->cuts)), links_(std::move(links)) {
  TP_CHECK(links_.size() == specs_.size(), "the session has made the links of the plan");
}

StageLinks::~StageLinks() {
  for (const InFlight& one : in_flight_)
    one.link->GiveUp(Status(ErrorId::kStepAbandoned, "this rank has left the step"));
}

RankLink* StageLinks::LinkFor(const StageMessage& message) const {
  const LinkSpec wanted = SpecOf(plan_.cuts, plan_.cuts.ColumnOf(plan_.rank), message);
  const auto found = std::find_if(specs_.begin(), specs_.end(),
                                  [&](const LinkSpec& one) { return SameLink(one, wanted); });
  TP_CHECK(found != specs_.end(), "there is a link between ranks whose stages follow each other");
  return links_[static_cast<size_t>(found - specs_.begin())];
}

void StageLinks::ForgetThoseGone() {
  std::erase_if(in_flight_, [](const InFlight& one) {
    return one.link->Ended(one.number) && one.link->Wait(one.number).ok();
  });
}

void StageLinks::Send(const StageMessage& message, const at::Tensor& tensor) {
  ForgetThoseGone();
  InFlight sent{.link = LinkFor(message), .tensor = tensor.contiguous(), .name = message.Name()};
  TP_CHECK(sent.link->sends(), "a tensor is sent by the rank that has made it");
  sent.number = sent.link->Start(sent.name, sent.tensor.data_ptr(), sent.tensor.nbytes());
  sent_bytes_ += sent.tensor.nbytes();
  in_flight_.push_back(std::move(sent));
}

Status StageLinks::Receive(const StageMessage& message, const at::Tensor& tensor) {
  TP_CHECK(tensor.is_contiguous(), "a message fills a tensor from end to end");
  RankLink* const link = LinkFor(message);
  const uint64_t number = link->Start(message.Name(), tensor.data_ptr(), tensor.nbytes());
  received_bytes_ += tensor.nbytes();
  return link->Wait(number);
}

Status StageLinks::Finish() {
  Status failed;
  for (const InFlight& one : in_flight_) {
    const Status gone = one.link->Wait(one.number);
    if (failed.ok()) failed = gone;
  }
  if (failed.ok()) in_flight_.clear();
  return failed;
}

}  // namespace tidepool::trainer
