#include "memserver/update/step_numbers.h"

#include <algorithm>

#include "base/planted.h"

namespace tidepool::memserver {

const char* StepNumbers::Take(Rank rank, const shm::Request& request) {
  OfRank& own = of_rank_[rank];
  if (own.waiting.size() == shm::kNumbersRequestsMax)
    return "a rank says more of a step than there is to say";

  if (request.op == static_cast<uint32_t>(shm::Op::kUntouched)) {
    own.untouched.resize(shm::WordsOfSet(spec_->parameters.size()));
    if (const char* why = shm::ReadUntouched(request, *spec_, own.untouched)) return why;
  } else if (request.op == static_cast<uint32_t>(shm::Op::kStepFacts)) {
    shm::StepFacts facts;
    if (const char* why = shm::ReadStepFacts(request, &facts)) return why;
    if (own.facts) return "a rank tells twice what a step was like";
    own.facts = facts;
  } else {
    GroupNumbers numbers;
    if (const char* why = shm::ReadGroupNumbers(request, *spec_, &numbers)) return why;

    const uint64_t bit = uint64_t{1} << shm::GroupOf(request);
    if ((own.groups & bit) != 0) return "a rank names the numbers of a parameter group twice";
    own.numbers.resize(spec_->parameter_groups.size());
    own.numbers[shm::GroupOf(request)] = numbers;
    own.groups |= bit;
  }
  own.waiting.push_back(request);
  return nullptr;
}

bool StepNumbers::Agree(Rank one, Rank other) const {
  const OfRank &a = of_rank_[one], &b = of_rank_[other];
  return a.groups == b.groups && a.numbers == b.numbers;
}

std::optional<shm::StepFacts> StepNumbers::facts() const {
  const auto told = std::find_if(of_rank_.begin(), of_rank_.end(),
                                 [](const OfRank& rank) { return rank.facts.has_value(); });
  return told == of_rank_.end() ? std::nullopt : told->facts;
}

StepSaid StepNumbers::Together() const {
  const OfRank& first = of_rank_.front();
  return {first.groups, first.numbers, LeftAlone()};
}

std::vector<uint64_t> StepNumbers::LeftAlone() const {
  const auto says = [](const OfRank& rank) { return !rank.untouched.empty(); };
  if (std::none_of(of_rank_.begin(), of_rank_.end(), says)) return {};

  const size_t words = shm::WordsOfSet(spec_->parameters.size());
  const bool by_any = TP_PLANTED("update.untouched_by_one_rank");
  std::vector<std::vector<uint64_t>> of_group;
  for (const shm::DataGroup& group : spec_->data_groups) {
    std::vector<uint64_t> set(words, by_any ? 0 : ~uint64_t{0});

    for (Rank rank = 0; rank < of_rank_.size(); ++rank) {
      if ((group.rank_mask >> rank & 1) == 0) continue;
      const std::vector<uint64_t>& said = of_rank_[rank].untouched;
      for (size_t i = 0; i < words; ++i) {
        const uint64_t word = said.empty() ? 0 : said[i];
        set[i] = by_any ? set[i] | word : set[i] & word;
      }
    }
    of_group.push_back(std::move(set));
  }

  std::vector<uint64_t> alone(words, 0);
  bool some = false;
  for (size_t i = 0; i < spec_->parameters.size(); ++i) {
    const uint32_t group = spec_->chunks[spec_->parameters[i].chunk].data_group;
    const uint64_t bit = of_group[group][i / 64] & uint64_t{1} << i % 64;
    alone[i / 64] |= bit;
    some |= bit != 0;
  }
  return some ? alone : std::vector<uint64_t>();
}

void StepNumbers::Clear() {
  for (OfRank& rank : of_rank_) {
    rank.groups = 0;
    rank.numbers.clear();
    rank.untouched.clear();
    rank.facts.reset();
    rank.waiting.clear();
  }
}

}  // namespace tidepool::memserver
