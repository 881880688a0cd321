// BuildLayout: parameters find their places by the rules of its header.
#include "trainer/layout/build_layout.h"

#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace tidepool::trainer {
namespace layout_test {

ParameterNote Note(const std::string& name, std::vector<uint64_t> dims, uint32_t group = 0,
                   bool multi_use = false) {
  return {name, std::move(dims), 0, group, multi_use};
}

// A transformer-like list: `layers` times the same few shapes.
std::vector<ParameterNote> Layers(int layers, uint64_t width) {
  std::vector<ParameterNote> notes;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string at = "h." + std::to_string(layer) + ".";
    notes.push_back(Note(at + "ln.weight", {width}));
    notes.push_back(Note(at + "ln.bias", {width}));
    notes.push_back(Note(at + "attn.weight", {3 * width, width}));
    notes.push_back(Note(at + "mlp.weight", {4 * width, width}));
  }
  return notes;
}

LayoutOptions WithChunks(uint64_t chunk_bytes) {
  LayoutOptions options;
  options.chunk_bytes = chunk_bytes;
  return options;
}

// The invariants of chunk_layout.h; the job spec of the server asks for the same.
void ExpectSound(const ChunkLayout& layout, const std::vector<ParameterNote>& notes) {
  const auto align_of = [&](ChunkId c) { return ShardAlignElements(layout.chunks[c].dtype); };
  ASSERT_EQ(layout.parameters.size(), notes.size());
  ASSERT_EQ(layout.of_note.size(), notes.size());
  uint64_t end = 0;
  ChunkId chunk = 0;
  for (ParameterId id = 0; id < layout.parameters.size(); ++id) {
    const ParameterPlace& place = layout.parameters[id];
    EXPECT_EQ(layout.of_note[place.note], id);
    EXPECT_EQ(place.name, notes[place.note].name);
    EXPECT_EQ(layout.chunks[place.chunk].data_group, notes[place.note].data_group);
    EXPECT_EQ(layout.chunks[place.chunk].frozen, notes[place.note].frozen);
    const DType dtype = notes[place.note].dtype.value_or(layout.chunks[place.chunk].dtype);
    EXPECT_EQ(layout.chunks[place.chunk].dtype, dtype);
    ASSERT_GE(place.chunk, chunk);
    if (place.chunk != chunk) end = 0;
    chunk = place.chunk;
    EXPECT_EQ(place.element_begin % align_of(place.chunk), 0u);
    EXPECT_GE(place.element_begin, end);
    end = place.element_begin + place.element_count;
    EXPECT_LE(end, layout.chunks[place.chunk].elements);
    EXPECT_EQ(layout.ParameterAt(chunk, place.element_begin), id);
    EXPECT_EQ(layout.ParameterAt(chunk, end - 1), id);
  }
  for (ChunkId c = 0; c < layout.chunks.size(); ++c) {
    EXPECT_GT(layout.chunks[c].parameter_count, 0u);
    EXPECT_EQ(layout.chunks[c].elements % (layout.ShardCount(c) * align_of(c)), 0u);
    if (!layout.chunks[c].resident) {
      EXPECT_EQ(layout.ChunkBytes(c), layout.block_bytes);
    }
    if (c == 0) continue;
    EXPECT_LE(layout.chunks[c - 1].frozen, layout.chunks[c].frozen);
    if (layout.chunks[c - 1].frozen != layout.chunks[c].frozen) continue;
    EXPECT_LE(layout.chunks[c - 1].dtype, layout.chunks[c].dtype);
    if (layout.chunks[c - 1].dtype == layout.chunks[c].dtype) {
      EXPECT_GE(layout.chunks[c - 1].resident, layout.chunks[c].resident);
    }
  }
}

// Adapters of rank `rank` beside every matrix of frozen layers, in front of them.
std::vector<ParameterNote> LayersWithAdapters(int layers, uint64_t width, uint64_t rank) {
  std::vector<ParameterNote> base = Layers(layers, width), notes;
  base.front().multi_use = true;
  for (const ParameterNote& note : base) {
    if (note.dims.size() < 2) continue;
    notes.push_back(Note(note.name + ".A", {rank, note.dims[1]}));
    notes.push_back(Note(note.name + ".B", {note.dims[0], rank}));
  }
  for (ParameterNote& note : base) note.frozen = true;
  notes.insert(notes.end(), base.begin(), base.end());
  return notes;
}

// Where the frozen parameters lie, counted from the first frozen chunk, and how large the chunks
// are.
std::vector<std::pair<std::string, uint64_t>> FrozenPlaces(const ChunkLayout& layout) {
  std::vector<std::pair<std::string, uint64_t>> places;
  for (const ParameterPlace& place : layout.parameters) {
    if (!layout.chunks[place.chunk].frozen) continue;
    places.emplace_back(place.name + " in " + std::to_string(place.chunk - layout.TrainedChunks()),
                        place.element_begin);
    places.emplace_back("of", layout.chunks[place.chunk].elements);
  }
  return places;
}

TEST(FrozenParameters, HaveChunksOfTheirOwnBehindTheOthers) {
  const std::vector<ParameterNote> notes = LayersWithAdapters(8, 64, 2);
  const ChunkLayout layout = BuildLayout(notes, {}).value();
  ExpectSound(layout, notes);
  ASSERT_EQ(layout.TrainedChunks(), 1u) << "the adapters are less than a chunk together";
  EXPECT_TRUE(layout.chunks[0].resident);
  EXPECT_TRUE(layout.chunks[1].frozen && layout.chunks[1].resident && layout.chunks[1].multi_use);
  EXPECT_GT(layout.chunks.size(), 4u);
  EXPECT_EQ(layout.TrainedParameterCount(), 8u * 2 * (64 + 3 * 64 + 64 + 4 * 64));
  EXPECT_EQ(layout.ParameterCount(), layout.TrainedParameterCount() + 8u * (2 * 64 + 7 * 64 * 64));
}

TEST(FrozenParameters, LieAlikeWhateverIsTrainedOverThem) {
  const auto places = FrozenPlaces(BuildLayout(LayersWithAdapters(8, 64, 1), {}).value());
  for (const uint64_t rank : {2, 8, 64}) {
    const std::vector<ParameterNote> notes = LayersWithAdapters(8, 64, rank);
    const ChunkLayout layout = BuildLayout(notes, {}).value();
    ExpectSound(layout, notes);
    EXPECT_EQ(FrozenPlaces(layout), places) << "rank " << rank;
  }
}

TEST(FrozenParameters, OfLessThanAChunkAreOneChunkBesideManyTrainedOnes) {
  std::vector<ParameterNote> notes = Layers(8, 64);
  notes.push_back(Note("small", {100}));
  notes.back().frozen = true;
  const ChunkLayout layout = BuildLayout(notes, {}).value();
  ExpectSound(layout, notes);
  EXPECT_EQ(layout.TrainedChunks(), layout.chunks.size() - 1);
  EXPECT_GT(layout.EvictableChunks(0), 1u);
  EXPECT_EQ(layout.chunks.back().elements, 112u);
}

// Norms in fp32 beside 16-bit matrices.
std::vector<ParameterNote> LayersWithNorms(int layers, uint64_t width) {
  std::vector<ParameterNote> notes = Layers(layers, width);
  for (ParameterNote& note : notes) note.dtype = note.dims.size() == 1 ? DType::kF32 : DType::kBF16;
  return notes;
}

TEST(ParametersOfTwoTypes, SmallFp32OnesAreOneResidentChunkInFrontOfTheOthers) {
  const std::vector<ParameterNote> notes = LayersWithNorms(8, 64);
  LayoutOptions options;
  options.dtype = DType::kBF16;
  options.world = 2;
  const ChunkLayout layout = BuildLayout(notes, options).value();
  ExpectSound(layout, notes);
  EXPECT_EQ(layout.dtype, DType::kBF16);
  EXPECT_EQ(layout.OwnF32Chunks(), 1u);
  EXPECT_TRUE(layout.chunks[0].resident);
  EXPECT_EQ(layout.chunks[0].elements, 8u * 2 * 64);
  EXPECT_EQ(layout.ResidentBytes(0), RoundUp(8 * 2 * 64 * 4, kPageBytes));
  EXPECT_EQ(layout.ParameterBytes(), 8u * (2 * 64 * 4 + 7 * 64 * 64 * 2));

  // The matrices lie as they would without norms.
  std::vector<ParameterNote> matrices = notes;
  std::erase_if(matrices, [](const ParameterNote& note) { return note.dtype == DType::kF32; });
  const ChunkLayout alone = BuildLayout(matrices, options).value();
  EXPECT_EQ(layout.block_bytes, alone.block_bytes);
  EXPECT_EQ(layout.chunks.size(), alone.chunks.size() + 1);
}

TEST(ParametersOfTwoTypes, EveryBlockHoldsAChunkOfEither) {
  std::vector<ParameterNote> notes = LayersWithNorms(8, 64);
  for (int layer = 0; layer < 8; ++layer) {
    notes.push_back(Note("router." + std::to_string(layer), {64, 128}));
    notes.back().dtype = DType::kF32;
  }
  LayoutOptions options = WithChunks(64 * 1024);
  options.dtype = DType::kBF16;
  const ChunkLayout layout = BuildLayout(notes, options).value();
  ExpectSound(layout, notes);
  ASSERT_GE(layout.OwnF32Chunks(), 4u);
  const ChunkPlace &wide = layout.chunks[0], &narrow = layout.chunks[layout.OwnF32Chunks()];
  EXPECT_EQ(wide.elements, 16u * 1024);
  EXPECT_EQ(narrow.elements, 32u * 1024);
  EXPECT_EQ(layout.BlockBytes(), 64u * 1024);
}

TEST(ParametersOfTwoTypes, AreAnFp32LayoutWhereNoTrainedOneHasSixteenBits) {
  std::vector<ParameterNote> notes = Layers(4, 32);
  for (ParameterNote& note : notes) note.dtype = DType::kF32;
  notes.push_back(Note("base", {64, 64}));
  notes.back().frozen = true;
  notes.back().dtype = DType::kBF16;
  LayoutOptions options;
  options.dtype = DType::kBF16;
  const ChunkLayout layout = BuildLayout(notes, options).value();
  ExpectSound(layout, notes);
  EXPECT_EQ(layout.dtype, DType::kF32);
  EXPECT_EQ(layout.OwnF32Chunks(), 0u);
  EXPECT_EQ(layout.chunks.back().dtype, DType::kBF16);

  options.dtype = DType::kF32;
  notes[0].dtype = DType::kBF16;
  EXPECT_EQ(BuildLayout(notes, options).status().id(), ErrorId::kUsageError);
}

TEST(FrozenParameters, OfAnyTypeHaveChunksOfTheirOwnKind) {
  std::vector<ParameterNote> notes = Layers(2, 16);
  for (int layer = 0; layer < 16; ++layer) {
    const std::string at = "base." + std::to_string(layer);
    for (const DType dtype : {DType::kRaw, DType::kF32, DType::kBF16, DType::kF16}) {
      notes.push_back(Note(at + "." + NameOf(dtype), {dtype == DType::kRaw ? 8192u : 64u}));
      notes.back().frozen = true;
      notes.back().dtype = dtype;
    }
  }
  LayoutOptions options;
  options.world = 3;
  const ChunkLayout layout = BuildLayout(notes, options).value();
  ExpectSound(layout, notes);
  EXPECT_EQ(layout.chunks.back().dtype, DType::kRaw);
  EXPECT_FALSE(layout.chunks.back().resident);
  EXPECT_EQ(layout.chunks.back().elements, layout.block_bytes);
  EXPECT_EQ(layout.ShardBytes(static_cast<ChunkId>(layout.chunks.size() - 1)) % 64, 0u);
  EXPECT_EQ(layout.ByteBegin(static_cast<ParameterId>(layout.parameters.size() - 1)) % 8192, 0u);
}

TEST(BuildLayout, PacksNeighboursUntilOneDoesNotFit) {
  const std::vector<ParameterNote> notes{Note("a", {100}), Note("b", {28}), Note("c", {120}),
                                         Note("d", {128})};
  const Result<ChunkLayout> layout = BuildLayout(notes, WithChunks(256 * 4));
  ASSERT_TRUE(layout.ok()) << layout.status().Format();
  ExpectSound(layout.value(), notes);
  // a takes 112 elements with its padding, b 32; c no longer fits beside them; d fits behind c.
  ASSERT_EQ(layout.value().chunks.size(), 2u);
  EXPECT_EQ(layout.value().parameters[1].element_begin, 112u);
  EXPECT_EQ(layout.value().parameters[2].chunk, 1u);
  EXPECT_EQ(layout.value().parameters[3].element_begin, 128u);
  EXPECT_EQ(layout.value().choice.best.waste_elements, 512u - (112 + 32 + 128 + 128));
}

TEST(BuildLayout, ParameterUsedTwiceHasAResidentChunkOfItsOwn) {
  std::vector<ParameterNote> notes = Layers(4, 32);
  notes.insert(notes.begin(), Note("wte", {5000, 32}, 0, true));
  const Result<ChunkLayout> layout = BuildLayout(notes, WithChunks(32 * 1024));
  ASSERT_TRUE(layout.ok()) << layout.status().Format();
  ExpectSound(layout.value(), notes);
  const ChunkPlace& first = layout.value().chunks[0];
  EXPECT_TRUE(first.multi_use && first.resident);
  EXPECT_EQ(first.parameter_count, 1u);
  EXPECT_EQ(first.elements, 5000u * 32);  // trimmed, larger than a block: it needs none
  EXPECT_EQ(layout.value().ResidentBytes(0), RoundUp(5000 * 32 * 4, kPageBytes));
  EXPECT_FALSE(layout.value().chunks[1].multi_use);
}

// Group 1 is smaller than a chunk, and its parameters stay between those of the others.
TEST(BuildLayout, WithoutFusingParametersKeepTheOrderOfTheNotes) {
  std::vector<ParameterNote> notes;
  for (uint32_t group = 0; group < 3; ++group) {
    for (const ParameterNote& note : Layers(group == 1 ? 1 : 8, group == 1 ? 8 : 64)) {
      notes.push_back(note);
      notes.back().name += std::to_string(group);
      notes.back().data_group = group;
    }
  }
  LayoutOptions options = WithChunks(64 * 1024);
  options.data_groups = {{0}, {0}, {0}};
  const auto order = [&] {
    const Result<ChunkLayout> layout = BuildLayout(notes, options);
    std::vector<uint32_t> all;
    for (const ParameterPlace& place : layout.value().parameters) all.push_back(place.note);
    return all;
  };
  std::vector<uint32_t> as_noted(notes.size());
  std::iota(as_noted.begin(), as_noted.end(), 0);
  EXPECT_NE(order(), as_noted);
  options.fuses_small = false;
  EXPECT_EQ(order(), as_noted);
  ExpectSound(BuildLayout(notes, options).value(), notes);
}

TEST(BuildLayout, GroupSmallerThanOneChunkIsFusedAndResident) {
  std::vector<ParameterNote> notes = Layers(8, 32);
  notes.push_back(Note("gate.weight", {64}, 1));
  notes.push_back(Note("gate.bias", {64}, 1));
  LayoutOptions options = WithChunks(32 * 1024);
  options.world = 2;
  options.data_groups = {{0, 1}, {0}};
  const Result<ChunkLayout> layout = BuildLayout(notes, options);
  ASSERT_TRUE(layout.ok()) << layout.status().Format();
  ExpectSound(layout.value(), notes);
  EXPECT_TRUE(layout.value().chunks[0].resident);
  EXPECT_FALSE(layout.value().chunks[0].multi_use);
  EXPECT_EQ(layout.value().chunks[0].elements, 128u);
  EXPECT_FALSE(layout.value().IsMember(0, 1));
  EXPECT_EQ(layout.value().ResidentBytes(1), 0u);
  EXPECT_GT(layout.value().EvictableChunks(1), 4u);
}

TEST(BuildLayout, NamedParametersStayResident) {
  const std::vector<ParameterNote> notes = Layers(8, 32);
  LayoutOptions options = WithChunks(32 * 1024);
  options.resident = {"h.3.attn.weight", "h.5.ln.bias"};
  const Result<ChunkLayout> layout = BuildLayout(notes, options);
  ASSERT_TRUE(layout.ok()) << layout.status().Format();
  ExpectSound(layout.value(), notes);
  EXPECT_TRUE(layout.value().chunks[0].resident);
  EXPECT_EQ(layout.value().chunks[0].used_elements, 3 * 32 * 32 + 32u);
}

TEST(BuildLayout, GroupsKeepTheirOwnOrderAndShareOneChunkSize) {
  std::vector<ParameterNote> notes;
  for (int i = 0; i < 24; ++i)
    notes.push_back(Note("p" + std::to_string(i), {32, 16}, static_cast<uint32_t>(i % 3)));
  LayoutOptions options;
  options.world = 4;
  options.data_groups = {{0, 1, 2, 3}, {1, 3}, {0, 1, 2}};
  const Result<ChunkLayout> layout = BuildLayout(notes, options);
  ASSERT_TRUE(layout.ok()) << layout.status().Format();
  ExpectSound(layout.value(), notes);
  EXPECT_EQ(layout.value().block_bytes % (12 * 64), 0u);
  uint32_t last_note[3] = {0, 0, 0};
  for (const ParameterPlace& place : layout.value().parameters) {
    const uint32_t group = layout.value().chunks[place.chunk].data_group;
    EXPECT_GE(place.note, last_note[group]);
    last_note[group] = place.note;
  }
  EXPECT_EQ(layout.value().ShardIndex(static_cast<ChunkId>(layout.value().chunks.size() - 1), 2),
            2u);
}

TEST(BuildLayout, TinyModelIsOneResidentChunk) {
  const Result<ChunkLayout> layout =
      BuildLayout(std::vector<ParameterNote>{Note("w", {8, 8}), Note("b", {})}, WithChunks(kMiB));
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout.value().chunks.size(), 1u);
  EXPECT_TRUE(layout.value().chunks[0].resident);
  EXPECT_EQ(layout.value().BlockBytes(), 0u);
  EXPECT_EQ(layout.value().parameters[1].element_count, 1u);
}

TEST(BuildLayout, ChunkBelowTheLargestParameterIsRefusedWithTheSizeThatWorks) {
  const std::vector<ParameterNote> notes = Layers(8, 64);
  const Result<ChunkLayout> refused = BuildLayout(notes, WithChunks(1024));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().id(), ErrorId::kParameterTooLarge);
  EXPECT_NE(
      refused.status().Format().find("--chunk-size at least " + std::to_string(4 * 64 * 64 * 4)),
      std::string::npos);
  EXPECT_TRUE(BuildLayout(notes, WithChunks(4 * 64 * 64 * 4)).ok());
  EXPECT_FALSE(BuildLayout(notes, WithChunks(4 * 64 * 64 * 4 - 64)).ok());
}

TEST(BuildLayout, ContradictionsAreUsageErrors) {
  const auto error_of = [](std::vector<ParameterNote> notes, LayoutOptions options) {
    return BuildLayout(notes, options).status().id();
  };
  LayoutOptions options;
  EXPECT_EQ(error_of({}, options), ErrorId::kUsageError);
  EXPECT_EQ(error_of({Note("a", {4}), Note("a", {4})}, options), ErrorId::kUsageError);
  EXPECT_EQ(error_of({Note("a", {4}, 1)}, options), ErrorId::kUsageError);
  EXPECT_EQ(error_of({Note("a", {0, 4})}, options), ErrorId::kUsageError);
  EXPECT_EQ(error_of({Note("a", {1ull << 40, 1ull << 40})}, options), ErrorId::kUsageError);
  options.resident = {"b"};
  EXPECT_EQ(error_of({Note("a", {4})}, options), ErrorId::kUsageError);
  options.resident = {};
  options.data_groups = {{1, 0}};
  options.world = 2;
  EXPECT_EQ(error_of({Note("a", {4})}, options), ErrorId::kUsageError);
  options.data_groups = {{0, 2}};
  EXPECT_EQ(error_of({Note("a", {4})}, options), ErrorId::kUsageError);
}

TEST(BuildLayout, AutoSizeLeavesRoomForFourBlocks) {
  const std::vector<ParameterNote> notes = Layers(12, 64);
  const ChunkLayout quarter = BuildLayout(notes, {}).value();
  EXPECT_GE(quarter.EvictableChunks(0), 16u);
  LayoutOptions options;
  options.rcache_block_bytes = kMiB;
  const ChunkLayout bounded = BuildLayout(notes, options).value();
  EXPECT_GE(kMiB / bounded.BlockBytes(), 4u);
  EXPECT_LT(bounded.choice.waste_share, 0.05);
  EXPECT_EQ(bounded.RcacheBytes(0, 4), 4 * bounded.BlockBytes());
}

TEST(BuildLayout, SixteenBitShardsStartOn64Bytes) {
  LayoutOptions options;
  options.dtype = DType::kBF16;
  options.world = 3;
  const std::vector<ParameterNote> notes = Layers(8, 48);
  const ChunkLayout layout = BuildLayout(notes, options).value();
  ExpectSound(layout, notes);
  EXPECT_EQ(layout.block_bytes % (3 * 64), 0u);
  EXPECT_EQ(layout.ShardBytes(0) % 64, 0u);
}

TEST(BuildLayout, InvariantsHoldForAnyModel) {
  EXPECT_TRUE(rc::check("layout invariants", [] {
    const auto sizes = *rc::gen::nonEmpty(
        rc::gen::container<std::vector<uint64_t>>(rc::gen::inRange<uint64_t>(1, 5000)));
    const uint32_t world = *rc::gen::inRange<uint32_t>(1, 5);
    std::vector<ParameterNote> notes;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool multi_use = *rc::gen::weightedElement<bool>({{9, false}, {1, true}});
      notes.push_back(Note("p" + std::to_string(i), {sizes[i]},
                           static_cast<uint32_t>(*rc::gen::inRange(0, 2)), multi_use));
    }
    LayoutOptions options;
    options.world = world;
    options.dtype = *rc::gen::element(DType::kF32, DType::kBF16);
    for (ParameterNote& note : notes) {
      note.frozen = *rc::gen::weightedElement<bool>({{4, false}, {1, true}});
      if (note.frozen) note.dtype = *rc::gen::element(DType::kRaw, DType::kF32, DType::kF16);
      if (!note.frozen && *rc::gen::arbitrary<bool>()) note.dtype = DType::kF32;
    }
    std::vector<Rank> everyone(world);
    std::iota(everyone.begin(), everyone.end(), 0);
    options.data_groups = {everyone, {world - 1}};
    options.chunk_bytes = *rc::gen::element<uint64_t>(0, 20'000, 40'000);
    const Result<ChunkLayout> layout = BuildLayout(notes, options);
    RC_ASSERT(layout.ok());
    ExpectSound(layout.value(), notes);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

}  // namespace layout_test
}  // namespace tidepool::trainer
