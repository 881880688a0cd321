// Byte-level BPE: pieces, merges, bytes that are no UTF-8, and files that are refused. The same ids
// as transformers' own tokenizer has them: tests/python/test_tokenizer.py.
#include "trainer/data/bpe_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "base/random.h"
#include "tests/trainer/data/data_files.h"
#include "trainer/data/corpus.h"

namespace tidepool::trainer {
namespace bpe_tokenizer_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All bytes, what the merges make, and a token that ends texts.
TokenizerFile FileOf(const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerFile file;
  file.path = "a/tokenizer.json";
  for (int byte = 0; byte < 256; ++byte) file.tokens.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : merges) {
    if (std::find(file.tokens.begin(), file.tokens.end(), left + right) == file.tokens.end())
      file.tokens.push_back(left + right);
  }
  file.merges = merges;
  file.added.push_back({static_cast<uint32_t>(file.tokens.size()), "<|endoftext|>"});
  file.tokens.emplace_back("<|endoftext|>");
  return file;
}

// The tokens of `text`, as bytes.
std::vector<std::string> Split(BpeTokenizer* tokenizer, const std::string& text) {
  std::vector<uint32_t> ids;
  tokenizer->Encode(text, &ids);
  std::vector<std::string> parts;
  for (const uint32_t id : ids) parts.emplace_back(tokenizer->Bytes(id));
  return parts;
}

TEST(BpeTokenizer, MergesThePreferredPairFirstAndTheLeftOneOfEqualOnes) {
  BpeTokenizer tokenizer =
      BpeTokenizer::Make(FileOf({{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"x", "x"}})).value();
  EXPECT_THAT(Split(&tokenizer, "abc"), ElementsAre("abc"));
  EXPECT_THAT(Split(&tokenizer, "ab"), ElementsAre("ab"));
  EXPECT_THAT(Split(&tokenizer, "abab"), ElementsAre("ab", "ab"));
  EXPECT_THAT(Split(&tokenizer, "xxx"), ElementsAre("xx", "x"));
  EXPECT_THAT(Split(&tokenizer, "xxxx"), ElementsAre("xx", "xx"));
  EXPECT_THAT(Split(&tokenizer, ""), ElementsAre());
}

TEST(BpeTokenizer, NeverMergesAcrossTheBordersOfGpt2sPattern) {
  // Every pair of these letters would merge.
  std::vector<std::pair<std::string, std::string>> merges;
  const std::string letters = "a1' s!\n";
  for (const char left : letters) {
    for (const char right : letters) merges.push_back({{left}, {right}});
  }
  BpeTokenizer tokenizer = BpeTokenizer::Make(FileOf(merges)).value();
  EXPECT_THAT(Split(&tokenizer, "a1"), ElementsAre("a", "1"));
  EXPECT_THAT(Split(&tokenizer, "a a"), ElementsAre("a", " a"));
  EXPECT_THAT(Split(&tokenizer, "a's"), ElementsAre("a", "'s"));
  EXPECT_THAT(Split(&tokenizer, "a!"), ElementsAre("a", "!"));
  // The last one of several spaces goes with the word.
  EXPECT_THAT(Split(&tokenizer, "a   a"), ElementsAre("a", "  ", " a"));
  EXPECT_THAT(Split(&tokenizer, "a  "), ElementsAre("a", "  "));
}

TEST(BpeTokenizer, TakesTokensThatStandForThemselvesFirst) {
  TokenizerFile file = FileOf({{"<", "|"}});
  file.added.push_back({static_cast<uint32_t>(file.tokens.size()), "<|"});
  file.tokens.emplace_back("<|");
  BpeTokenizer tokenizer = BpeTokenizer::Make(file).value();
  EXPECT_THAT(Split(&tokenizer, "a<|endoftext|>b<|c"),
              ElementsAre("a", "<|endoftext|>", "b", "<|", "c"));
  EXPECT_EQ(tokenizer.end_of_text(), 257U);
  EXPECT_EQ(tokenizer.vocab(), 259U);
}

TEST(BpeTokenizer, GivesAllBytesBack) {
  BpeTokenizer tokenizer =
      BpeTokenizer::Make(FileOf({{"\xC3", "\xA4"}, {"\xFF", "\xFE"}, {"e", " "}})).value();
  SplitMix64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (uint64_t i = random.Below(60); i > 0; --i) {
      const uint64_t kind = random.Below(4);
      text += kind == 0   ? std::string(1, static_cast<char>(random.Below(256)))
              : kind == 1 ? "\xC3\xA4"
              : kind == 2 ? "<|endoftext|>"
                          : " e";
    }
    std::string back;
    for (const std::string& part : Split(&tokenizer, text)) back += part;
    ASSERT_EQ(back, text);
  }
}

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kLongPiece = 1 << 14;
#else
constexpr uint64_t kLongPiece = 1 << 20;
#endif

TEST(BpeTokenizer, TakesLongPiecesInOrderOfTheirLength) {
  BpeTokenizer tokenizer = BpeTokenizer::Make(FileOf({{"a", "a"}, {"aa", "aa"}})).value();
  for (const char* unit : {"a", " ", "!"}) {
    std::string text;
    for (uint64_t i = 0; i < kLongPiece; ++i) text += unit;
    std::vector<uint32_t> ids;
    tokenizer.Encode(text, &ids);
    EXPECT_EQ(ids.size(), *unit == 'a' ? kLongPiece / 4 : kLongPiece);
  }
}

TEST(BpeTokenizer, IsNotMadeOfFilesThatLackATokenThatIsNeeded) {
  TokenizerFile file = FileOf({{"a", "b"}});
  file.tokens['q'] = "no byte";
  EXPECT_THAT(BpeTokenizer::Make(file).status().what(), HasSubstr("no token for byte 113"));
  file = FileOf({{"a", "b"}});
  file.tokens[256] = "else";
  EXPECT_THAT(BpeTokenizer::Make(file).status().what(), HasSubstr("no token for merge 0"));
}

class TokenizerFiles : public ::testing::Test {
 protected:
  // tokenizer.json with `model` and `before`: members of model and pre_tokenizer.
  Status Read(const std::string& model, const std::string& before = R"("type": "ByteLevel")",
              const std::string& more = "") {
    folder_.Write("tokenizer.json", R"({"model": {)" + model + R"(}, "pre_tokenizer": {)" + before +
                                        "}" + more + "}");
    return ReadTokenizer(folder_.path()).status();
  }
  TempFolder folder_;
};

TEST_F(TokenizerFiles, AreReadInBothForms) {
  ASSERT_TRUE(Read(R"("type": "BPE", "vocab": {"a": 0, "\u0120": 1, "\u0120a": 2},)"
                   R"( "merges": [["\u0120", "a"]])",
                   R"("type": "ByteLevel", "add_prefix_space": true)",
                   R"(, "added_tokens": [{"id": 4, "content": "<|endoftext|>"}])")
                  .ok());
  const TokenizerFile whole = ReadTokenizer(folder_.path()).value();
  EXPECT_THAT(whole.tokens, ElementsAre("a", " ", " a", "", "<|endoftext|>"));
  EXPECT_THAT(whole.merges, ElementsAre(std::pair<std::string, std::string>(" ", "a")));
  EXPECT_EQ(whole.prefix, SpacePrefix::kText);
  EXPECT_FALSE(whole.of_letters || whole.whole_pieces || whole.begins);
  EXPECT_THAT(TokenizerFilesIn(folder_.path()), ElementsAre("tokenizer.json"));

  const TempFolder pair;
  pair.Write("vocab.json", R"({"a": 0, "\u0120": 1, "\u0120a": 2, "<|endoftext|>": 3})");
  EXPECT_TRUE(TokenizerFilesIn(pair.path()).empty());
  pair.Write("merges.txt", "#version: 0.2\n\u0120 a\n");
  const TokenizerFile two = ReadTokenizer(pair.path()).value();
  EXPECT_THAT(two.tokens, ElementsAre("a", " ", " a", "<|endoftext|>"));
  EXPECT_EQ(two.merges, whole.merges);
  EXPECT_EQ(two.added.size(), 1U);
}

TEST_F(TokenizerFiles, OfOtherKindsAreRefusedByWhatTheyHave) {
  const std::string bpe = R"("type": "BPE", "vocab": {}, "merges": [])";
  ASSERT_TRUE(Read(bpe).ok());
  EXPECT_THAT(Read(R"("type": "Unigram", "vocab": [])").what(), HasSubstr("Unigram, not BPE"));
  EXPECT_THAT(Read(bpe, R"("type": "Metaspace")").what(), HasSubstr("Metaspace, not ByteLevel"));
  EXPECT_THAT(Read(bpe, R"("type": "ByteLevel", "use_regex": false)").what(),
              HasSubstr("does not use GPT-2's pattern"));
  EXPECT_THAT(Read(bpe, R"("type": "ByteLevel")", R"(, "normalizer": {"type": "NFC"})").what(),
              HasSubstr("normalizer"));
  EXPECT_THAT(Read(bpe + R"(, "byte_fallback": true)").what(),
              HasSubstr("ByteLevel, not Metaspace"));
  EXPECT_THAT(
      Read(bpe + R"(, "byte_fallback": true)", R"("type": "Metaspace", "replacement": "_")").what(),
      HasSubstr("not Llama 2's"));
  EXPECT_THAT(Read(bpe + R"(, "dropout": 0.1)").what(), HasSubstr("it uses dropout"));
  EXPECT_THAT(Read(bpe, R"("type": "Sequence", "pretokenizers": [{"type": "Digits"}])").what(),
              HasSubstr("Digits, not ByteLevel"));
  EXPECT_THAT(Read(bpe, R"("type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":)"
                        R"( {"Regex": "a"}, "behavior": "Removed"},)"
                        R"( {"type": "ByteLevel", "use_regex": false}])")
                  .what(),
              HasSubstr("as Llama 3's does"));
  EXPECT_THAT(Read(R"("vocab": {"a": -1}, "merges": [])").what(), HasSubstr("no usable id"));
  EXPECT_THAT(Read(R"("vocab": {"a": 99999999}, "merges": [])").what(), HasSubstr("no usable id"));
  EXPECT_THAT(Read(R"("vocab": {}, "merges": ["ab"])").what(), HasSubstr("merge 0 is no pair"));
  EXPECT_THAT(Read(R"("vocab": {}, "merges": [["a"]])").what(), HasSubstr("merge 0 is no pair"));
  EXPECT_THAT(Read(R"("vocab": {})").what(), HasSubstr("no merges"));
  folder_.Write("tokenizer.json", "[]");
  EXPECT_EQ(ReadTokenizer(folder_.path()).status().id(), ErrorId::kDataBad);
  EXPECT_EQ(ReadTokenizer(folder_.path() + "/none").status().id(), ErrorId::kFileUnreadable);
}

constexpr const char* kLikeLlama3 =
    R"("type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated", "invert": false,)"
    R"( "pattern": {"Regex": "\\p{N}{1,3}|[a-z]+"}},)"
    R"( {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}])";

TEST_F(TokenizerFiles, OfLlama3sKindAreReadWithTheirPatternAndTheirBegin) {
  ASSERT_TRUE(
      Read(R"("type": "BPE", "ignore_merges": true, "vocab": {"a": 0}, "merges": [])", kLikeLlama3,
           R"(, "added_tokens": [{"id": 4, "content": "<|begin_of_text|>"}],)"
           R"( "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},)"
           R"( {"type": "TemplateProcessing", "single":)"
           R"( [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},)"
           R"( {"Sequence": {"id": "A", "type_id": 0}}]}]})")
          .ok());
  const TokenizerFile file = ReadTokenizer(folder_.path()).value();
  EXPECT_EQ(file.pattern, "\\p{N}{1,3}|[a-z]+");
  EXPECT_TRUE(file.whole_pieces);
  EXPECT_FALSE(file.of_letters);
  EXPECT_EQ(file.begins, 4U);
}

TEST(BpeTokenizer, CutsByItsOwnPatternAndTakesPiecesThatAreTokens) {
  TokenizerFile file = FileOf({{"1", "2"}, {"12", "3"}, {"123", "4"}, {"a", "b"}});
  file.pattern = R"(\p{N}{1,3}|[a-z]+)";
  BpeTokenizer tokenizer = BpeTokenizer::Make(file).value();
  EXPECT_THAT(Split(&tokenizer, "1234ab"), ElementsAre("123", "4", "ab"));
  EXPECT_THAT(Split(&tokenizer, "ab, ab"), ElementsAre("ab", ",", " ", "ab"))
      << "what lies between two matches is a piece";

  file.tokens.emplace_back("xyz");  // a token that no merge makes
  EXPECT_THAT(Split(&tokenizer, "xyz"), ElementsAre("x", "y", "z"));
  file.whole_pieces = true;
  BpeTokenizer whole = BpeTokenizer::Make(file).value();
  EXPECT_THAT(Split(&whole, "xyz"), ElementsAre("xyz"));
  EXPECT_THAT(Split(&whole, "xyzab"), ElementsAre("x", "y", "z", "ab"));
  file.pattern = "(";
  EXPECT_THAT(BpeTokenizer::Make(file).status().what(), HasSubstr("none of PCRE2's"));
}

// Llama 2's: ids 0 to 2 are special, then bytes, then letters and what merges make.
std::string SentencepieceVocabulary() {
  std::string vocabulary = R"("<unk>": 0, "<s>": 1, "</s>": 2)";
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 24> entry{};
    std::snprintf(entry.data(), entry.size(), R"(, "<0x%02X>": %d)", byte, byte + 3);
    vocabulary += entry.data();
  }
  int id = 259;
  for (const char* token : {"\u2581", "a", "b", "A", "é", "ab", "\u2581ab", "\u2581\u2581"})
    vocabulary += ", \"" + std::string(token) + "\": " + std::to_string(id++);
  return vocabulary;
}

constexpr const char* kMergesOfLetters =
    R"("merges": [["a", "b"], ["\u2581", "ab"], ["\u2581", "\u2581"]])";

TEST_F(TokenizerFiles, OfLlama2sKindAreOfLettersAndFallBackToBytes) {
  const std::string model = R"("type": "BPE", "byte_fallback": true, "vocab": {)" +
                            SentencepieceVocabulary() + "}, " + kMergesOfLetters;
  const auto made = [&](const char* scheme) {
    EXPECT_TRUE(
        Read(model,
             R"("type": "Metaspace", "replacement": "\u2581", "split": false, )"
             R"("prepend_scheme": ")" +
                 std::string(scheme) + "\"",
             R"(, "added_tokens": [{"id": 2, "content": "</s>"}, {"id": 1, "content": "<s>"}])")
            .ok());
    return BpeTokenizer::Make(ReadTokenizer(folder_.path()).value());
  };
  BpeTokenizer always = made("always").value(), first = made("first").value(),
               never = made("never").value();
  EXPECT_THAT(Split(&always, "ab"), ElementsAre(" ab"));
  EXPECT_THAT(Split(&always, " ab"), ElementsAre(" ab")) << "it has its space";
  EXPECT_THAT(Split(&always, "ab  ab"), ElementsAre(" ab", " ", " ab"));
  EXPECT_THAT(Split(&always, "ab</s>ab"), ElementsAre(" ab", "</s>", " ab"));
  EXPECT_THAT(Split(&first, "ab</s>ab"), ElementsAre(" ab", "</s>", "ab"));
  EXPECT_THAT(Split(&first, "</s>ab"), ElementsAre("</s>", "ab"));
  EXPECT_THAT(Split(&never, "ab"), ElementsAre("ab"));
  EXPECT_THAT(Split(&never, "é"), ElementsAre("é")) << "a letter of two bytes";
  EXPECT_THAT(Split(&never, "ö\n"), ElementsAre("\xC3", "\xB6", "\n"));
  EXPECT_THAT(Split(&never, "\xFFz"), ElementsAre("\xFF", "z")) << "no UTF-8";
  EXPECT_EQ(always.end_of_text(), 2U);

  // The letter A is not the byte 0x41, whose token has the same text.
  std::vector<uint32_t> ids;
  never.Encode("AZ", &ids);
  EXPECT_THAT(ids, ElementsAre(262U, 3U + 'Z'));

  // The form of earlier releases.
  folder_.Write("tokenizer.json",
                "{\"model\": {" + model +
                    R"(}, "pre_tokenizer": null,)"
                    R"( "normalizer": {"type": "Sequence", "normalizers":)"
                    R"( [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace",)"
                    R"( "pattern": {"String": " "}, "content": "\u2581"}]}})");
  auto former = ReadTokenizer(folder_.path());
  ASSERT_TRUE(former.ok()) << former.status().Format();
  EXPECT_EQ(former->prefix, SpacePrefix::kEachPartAlways);
  EXPECT_THAT(Read(R"("type": "BPE", "byte_fallback": true, "vocab": {"a": 0}, "merges": [])",
                   R"("type": "Metaspace", "replacement": "\u2581", "split": false)")
                  .what(),
              HasSubstr("byte 0 has no token"));
}

TEST_F(TokenizerFiles, AreCopiedToWhereWeightsAreSaved) {
  const TempFolder to;
  ASSERT_TRUE(CopyTokenizer(folder_.path(), to.path()).ok());
  EXPECT_TRUE(TokenizerFilesIn(to.path()).empty());
  folder_.Write("tokenizer.json", "{}");
  ASSERT_TRUE(CopyTokenizer(folder_.path(), to.path()).ok());
  EXPECT_EQ(TokenizerFilesIn(to.path()).size(), 1U);
  EXPECT_TRUE(CopyTokenizer(folder_.path(), folder_.path()).ok());
}

TEST(TokenizedCorpus, HoldsTheIdsOfBothParts) {
  BpeTokenizer tokenizer = BpeTokenizer::Make(FileOf({{"a", "b"}})).value();
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 500; ++i) text += "ab";
  const std::string path = folder.Write("a.txt", text);
  const Corpus corpus =
      OpenCorpus(path, {.vocab = 300, .outputs = {}, .tokenizer = &tokenizer}).value();
  EXPECT_EQ(corpus.train.size(), 450U);
  EXPECT_EQ(corpus.validation.size(), 50U);
  std::vector<int64_t> ids(3);
  ASSERT_TRUE(corpus.train.Part(10, 20).Read(7, ids).ok());
  EXPECT_THAT(ids, ElementsAre(256, 256, 256));
  EXPECT_TRUE(corpus.train.text().empty());
  EXPECT_THAT(corpus.description, HasSubstr("tokenized: 450 tokens to train on, 50 tokens held"));

  const Status small =
      OpenCorpus(path, {.vocab = 257, .outputs = {}, .tokenizer = &tokenizer}).status();
  EXPECT_EQ(small.id(), ErrorId::kUsageError);
  EXPECT_THAT(small.what(), HasSubstr("the tokenizer has 258 ids, the model's vocabulary 257"));
}

}  // namespace bpe_tokenizer_test
}  // namespace tidepool::trainer
