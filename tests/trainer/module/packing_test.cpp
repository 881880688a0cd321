// In which order parameters are packed that a profile, or the job's server, knows something of.
#include "trainer/module/packing.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace tidepool::trainer {
namespace packing_test {

UseEvent Begin(std::vector<uint32_t> notes) {
  return {UseEvent::Kind::kBegin, std::move(notes)};
}
const UseEvent kEnd{UseEvent::Kind::kEnd, {}};
UseEvent Gradient(uint32_t note) {
  return {UseEvent::Kind::kGradient, {note}};
}

// Parameters of a chunk each.
std::vector<ParameterNote> Notes(uint32_t count) {
  std::vector<ParameterNote> notes;
  for (uint32_t i = 0; i < count; ++i) notes.push_back({"p" + std::to_string(i), {16, 16}});
  return notes;
}

LayoutOptions ChunksOf(uint64_t bytes) {
  LayoutOptions options;
  options.chunk_bytes = bytes;
  return options;
}

std::vector<std::string> NamesOf(const ChunkLayout& layout) {
  std::vector<std::string> names;
  for (const ParameterPlace& place : layout.parameters) names.push_back(place.name);
  return names;
}

// Forward reads `order`, backward the reverse, with a gradient behind each use.
StepProfile StepOf(const std::vector<uint32_t>& order) {
  StepProfile profile;
  auto& events = profile.trace.events;
  for (const uint32_t note : order) events.insert(events.end(), {Begin({note}), kEnd});
  for (size_t i = order.size(); i-- > 0;)
    events.insert(events.end(), {Begin({order[i]}), kEnd, Gradient(order[i])});
  return profile;
}

TEST(FirstUses, AreInTheOrderOfOperatorsAndTheUnreadComeLast) {
  const UseTrace trace{{Begin({3, 1}), Begin({1}), kEnd, kEnd, Gradient(0), Begin({4}), kEnd}};
  EXPECT_EQ(FirstUses(trace, 6), (std::vector<uint32_t>{3, 1, 4, 0, 2, 5}));
  EXPECT_EQ(FirstUses({}, 3), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(NotesOf(trace), 5U);
  EXPECT_EQ(NotesOf({}), 0U);
}

TEST(UsedBehindGradient, IsAReadOrASecondGradientBehindTheFirst) {
  const UseTrace trace{{Begin({0, 1, 2}), kEnd, Begin({0}), kEnd, Gradient(0), Gradient(1),
                        Begin({1}), kEnd, Gradient(2), Gradient(2)}};
  EXPECT_EQ(UsedBehindGradient(trace, 4), (std::vector<bool>{false, true, true, false}));
}

TEST(PackModule, WithoutAProfileIsTheLayoutOfTheNotes) {
  const ChunkLayout plain = BuildLayout(Notes(7), ChunksOf(2048)).value(),
                    packed = PackModule(Notes(7), {}, ChunksOf(2048)).value();
  EXPECT_EQ(NamesOf(packed), NamesOf(plain));
  EXPECT_EQ(packed.of_note, plain.of_note);
}

TEST(PackModule, FollowsTheOrderOfUseAndKeepsTheNumbersOfParameters) {
  const StepProfile profile = StepOf({4, 2, 0, 1, 3});
  const ChunkLayout layout = PackModule(Notes(6), {&profile, {}}, ChunksOf(2048)).value();
  EXPECT_EQ(NamesOf(layout), (std::vector<std::string>{"p4", "p2", "p0", "p1", "p3", "p5"}));
  for (uint32_t note = 0; note < 6; ++note) {
    const ParameterPlace& place = layout.parameters[layout.of_note[note]];
    EXPECT_EQ(place.name, "p" + std::to_string(note));
    EXPECT_EQ(place.note, note);
  }
}

TEST(PackModule, LeavesFrozenParametersInTheOrderOfRegistration) {
  std::vector<ParameterNote> notes = Notes(6);
  for (const uint32_t note : {1, 3, 5}) notes[note].frozen = true;
  const StepProfile profile = StepOf({5, 4, 3, 2, 1, 0});
  const ChunkLayout layout = PackModule(notes, {&profile, {}}, ChunksOf(1024)).value();
  EXPECT_EQ(NamesOf(layout), (std::vector<std::string>{"p4", "p2", "p0", "p1", "p3", "p5"}));
}

TEST(PackModule, KeepsGradientsApartOfWhatIsUsedBehindThem) {
  StepProfile profile = StepOf({0, 1, 2, 3, 4});
  profile.trace.events.insert(profile.trace.events.end(), {Begin({3}), kEnd});
  const ChunkLayout layout = PackModule(Notes(5), {&profile, {}}, ChunksOf(1024)).value();
  for (uint32_t note = 0; note < 5; ++note)
    EXPECT_EQ(layout.chunks[layout.parameters[layout.of_note[note]].chunk].multi_use, note == 3);
}

TEST(PackModule, HasTheSameChunksAgainFromTheNamesThatTheServerHolds) {
  SplitMix64 dice(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<ParameterNote> notes = Notes(20);
    std::vector<uint32_t> order;
    for (uint32_t note = 0; note < 20; ++note) {
      notes[note].dims = {16, 1 + dice.Below(40)};
      notes[note].multi_use = dice.Below(8) == 0;
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(dice.Below(note + 1)), note);
    }
    const StepProfile profile = StepOf(order), other = StepOf({3, 2, 1, 0});
    const ChunkLayout made = PackModule(notes, {&profile, {}}, ChunksOf(4096)).value();

    for (const StepProfile* now : {static_cast<const StepProfile*>(nullptr), &other}) {
      const ChunkLayout again = PackModule(notes, {now, NamesOf(made)}, ChunksOf(4096)).value();
      EXPECT_EQ(NamesOf(again), NamesOf(made));
      EXPECT_EQ(again.of_note, made.of_note);
      EXPECT_EQ(again.chunks.size(), made.chunks.size());
    }
  }
}

TEST(PackModule, RefusesNamesOfAnotherModule) {
  for (const std::vector<std::string>& held :
       {std::vector<std::string>{"p0", "p1"}, {"p0", "p1", "q"}, {"p0", "p1", "p1"}}) {
    EXPECT_EQ(PackModule(Notes(3), {nullptr, held}, ChunksOf(1024)).status().id(),
              ErrorId::kJobMismatch);
  }
}

}  // namespace packing_test
}  // namespace tidepool::trainer
