#include "runtime/data/document_encoder.h"

#include <string>
#include <vector>

#include "runtime/data/file_io.h"
#include "runtime/data/token_shard.h"
#include "runtime/data/tokenizer.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int32_t kStart = 300;
constexpr int32_t kEnd = 301;

std::vector<int32_t> Bytes(const std::string& text) {
  return ByteTokenizer().Encode(text);
}

DocumentEncoding ByteEncoding(ChatFormat format = ChatFormat::kPlain) {
  DocumentEncoding encoding;
  encoding.encode = Bytes;
  encoding.encode_start = [](const std::string& text) {
    std::vector<int32_t> ids = Bytes(text);
    ids.insert(ids.begin(), kStart);
    return ids;
  };
  encoding.chat = ChatTemplate(format);
  encoding.end_token = kEnd;
  return encoding;
}

// What counts in upper brackets, as "a[b]".
std::string Text(const std::vector<int32_t>& tokens) {
  std::string text;
  bool counted = false;
  for (int32_t token : tokens) {
    if ((token >= 0) != counted) text += counted ? "]" : "[";
    counted = token >= 0;
    const int32_t id = counted ? token : ~token;
    text += id == kStart ? "^" : id == kEnd ? "$" : std::string(1, id);
  }
  return counted ? text + "]" : text;
}

std::string Encoded(const Document& document,
                    const DocumentEncoding& encoding) {
  const auto tokens = EncodeDocument(document, encoding);
  EXPECT_OK(tokens);
  return Text(*tokens);
}

const ChatDocument kChat = {{{"user", "Hi"},
                             {"assistant", "Yes"},
                             {"user", "And?"},
                             {"assistant", "No"}}};

TEST(DocumentEncoderTest, MarksWhatCounts) {
  const DocumentEncoding encoding = ByteEncoding();
  EXPECT_EQ(Encoded(TextDocument{"ab"}, encoding), "[^ab$]");
  EXPECT_EQ(Encoded(CompletionDocument{"ab", " c"}, encoding), "^ab[ c$]");
  EXPECT_EQ(Encoded(kChat, encoding),
            "^User: Hi\nAssistant:[ Yes\n]User: And?\nAssistant:[ No\n$]");
}

TEST(DocumentEncoderTest, ChatTemplatesBringTheirOwnEnds) {
  EXPECT_EQ(Encoded(kChat, ByteEncoding(ChatFormat::kChatMl)),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "[Yes<|im_end|>]\n<|im_start|>user\nAnd?<|im_end|>\n"
            "<|im_start|>assistant\n[No<|im_end|>]\n");
  EXPECT_EQ(Encoded({ChatDocument{{{"user", "Hi"}}}},
                    ByteEncoding(ChatFormat::kLlama3)),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi"
            "<|eot_id|>");
}

// "_" is what some tokenizers put before every text.
TEST(DocumentEncoderTest, NothingStandsBeforeAPartOfAText) {
  DocumentEncoding encoding = ByteEncoding();
  encoding.encode = [](const std::string& text) { return Bytes("_" + text); };
  EXPECT_EQ(Encoded(CompletionDocument{"a", "b"}, encoding), "^a[b$]");
  // "\n\n" is one token here, so that the line before cannot be cut off.
  encoding.encode = [](const std::string& text) {
    return text.starts_with("\n\n") ? Bytes("2" + text.substr(2)) : Bytes(text);
  };
  EXPECT_EQ(Encoded(CompletionDocument{"a", "\nb"}, encoding), "^a[\nb$]");
}

TEST(DocumentEncoderTest, AnEndStandsOnce) {
  DocumentEncoding encoding = ByteEncoding();
  encoding.encode_start = [](const std::string& text) {
    std::vector<int32_t> ids = Bytes(text);
    ids.push_back(kEnd);
    return ids;
  };
  EXPECT_EQ(Encoded(TextDocument{"a"}, encoding), "[a$]");
  EXPECT_EQ(Encoded(CompletionDocument{"a", "b"}, encoding), "a[b$]");
  encoding.end_token.reset();
  encoding.encode_start = Bytes;
  EXPECT_EQ(Encoded(CompletionDocument{"a", "b"}, encoding), "a[b]");
}

TEST(DocumentEncoderTest, AForeignTemplateIsAnErrorOfTheFirstConversation) {
  DocumentEncoding encoding = ByteEncoding();
  encoding.chat = absl::UnimplementedError("strange template");
  EXPECT_EQ(Encoded(TextDocument{"a"}, encoding), "[^a$]");
  EXPECT_THAT(EncodeDocument(kChat, encoding),
              StatusIs(absl::StatusCode::kUnimplemented, "strange"));
}

TEST(DocumentEncoderTest, LoadsFilesAndCountsWhatItSkips) {
  const std::string path = ::testing::TempDir() + "/set.jsonl";
  ASSERT_OK(WriteFile(
      path,
      "{\"text\": \"\"}\n{\"text\": \"ab\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
      "{\"messages\": []}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n"));
  const auto set = LoadDocuments({path, path}, ByteEncoding());
  ASSERT_OK(set);
  EXPECT_EQ(set->skipped.empty, 4);
  EXPECT_EQ(set->skipped.without_loss, 2);
  ASSERT_EQ(set->tokens.num_documents(), 4);
  EXPECT_EQ(set->tokens.num_tokens(), 16);
  EXPECT_EQ(set->tokens.begin(1), 4);
  EXPECT_EQ(set->tokens.end(1), 8);
  EXPECT_EQ(Text({set->tokens.tokens().begin() + 4,
                  set->tokens.tokens().begin() + 8}),
            "^a[b$]");
  const auto one = LoadDocuments({path}, ByteEncoding());
  EXPECT_NE(one->tokens.fingerprint(), set->tokens.fingerprint());
  EXPECT_EQ(LoadDocuments({path}, ByteEncoding())->tokens.fingerprint(),
            one->tokens.fingerprint());
  DocumentEncoding foreign = ByteEncoding();
  foreign.chat = absl::UnimplementedError("strange template");
  EXPECT_THAT(
      LoadDocuments({path}, foreign),
      StatusIs(absl::StatusCode::kUnimplemented, "set.jsonl:3: strange"));
}

TEST(DocumentEncoderTest, TokenFilesAreCutWhereDocumentsStart) {
  const std::string path = ::testing::TempDir() + "/shard.bin";
  // The end of a document of the file before, two documents, and one that is
  // its start alone.
  const std::vector<int64_t> ids = {5, 6, 50256, 7, 8, 50256, 9, 50256};
  ASSERT_OK(WriteTokenShard(path, TokenShardKind::kGpt2, ids));
  DocumentEncoding encoding = ByteEncoding();
  encoding.vocab_size = 50257;
  const auto set = LoadDocuments({path}, encoding);
  ASSERT_OK(set);
  ASSERT_EQ(set->tokens.num_documents(), 3);
  EXPECT_EQ(set->skipped.without_loss, 1);
  const auto tokens = set->tokens.tokens();
  EXPECT_EQ(std::vector<int32_t>(tokens.begin(), tokens.end()),
            (std::vector<int32_t>{5, 6, 50256, 7, 8, 50256, 9}));
  EXPECT_EQ(set->tokens.begin(1), 2);
  EXPECT_EQ(set->tokens.end(1), 5);
  encoding.vocab_size = 50256;
  EXPECT_THAT(LoadDocuments({path}, encoding),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "token 2 is 50256, the vocabulary has 50256"));
}

}  // namespace
}  // namespace tessera
