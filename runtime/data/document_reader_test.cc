#include "runtime/data/document_reader.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/data/file_io.h"
#include "runtime/data/line_reader.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string PathOf(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

// "place kind text text ..." of each document.
std::vector<std::string> Read(const std::string& name,
                              const std::string& content) {
  EXPECT_OK(WriteFile(PathOf(name), content));
  std::vector<std::string> found;
  const absl::Status status = ReadDocuments(
      PathOf(name), [&](const Document& document, const std::string& place) {
        std::string text = place.substr(PathOf("").size());
        if (const auto* plain = std::get_if<TextDocument>(&document)) {
          absl::StrAppend(&text, " text ", plain->text);
        } else if (const auto* pair =
                       std::get_if<CompletionDocument>(&document)) {
          absl::StrAppend(&text, " pair ", pair->prompt, "|", pair->completion);
        } else {
          text += " chat";
          for (const ChatMessage& m : std::get<ChatDocument>(document).messages)
            absl::StrAppend(&text, " ", m.role, "=", m.content);
        }
        found.push_back(text);
        return absl::OkStatus();
      });
  if (!status.ok()) found.push_back(status.ToString());
  return found;
}

using Strings = std::vector<std::string>;

TEST(DocumentReaderTest, ReadsEveryKindOfLine) {
  EXPECT_EQ(
      Read("a.jsonl",
           "\xEF\xBB\xBF{\"text\": \"One\\n\\u00e9\", \"source\": 7}\r\n"
           "\n  \t\n"
           "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n"
           "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
           "{\"role\": \"assistant\", \"content\": \"Yes\"}], \"prompt\": "
           "\"Hi\"}"),
      (Strings{"a.jsonl:1 text One\n\u00e9", "a.jsonl:4 pair 2+2=|4",
               "a.jsonl:5 chat user=Hi assistant=Yes"}));
  EXPECT_EQ(Read("a.txt", "\xEF\xBB\xBF{\"text\": 1}\nTwo\n"),
            (Strings{"a.txt text {\"text\": 1}\nTwo\n"}));
  EXPECT_EQ(Read("empty.ndjson", ""), Strings());
}

TEST(DocumentReaderTest, SaysWhereAndWhatWasWanted) {
  const std::vector<std::pair<std::string, Strings>> cases = {
      {"{\"text\": \"a\"", {"x.jsonl:2: ", "wanted JSON", "byte 13", "mend"}},
      {"[{\"text\": \"a\"},", {"beginning of a list", "each of its members"}},
      {"7", {"wanted an object", "got a number"}},
      {"{}", {"got an object with no key"}},
      {R"({"instruction": "a", "output": "b"})",
       {"with \"instruction\", \"output\"; rename the keys"}},
      {R"({"text": 7})", {"document.text: wanted a string, got 7"}},
      {R"({"text": null})", {"document.text: wanted a value, got null; leave"}},
      {R"({"id": 1, "messages": null})",
       {"document.messages: wanted a value, got null"}},
      {R"({"prompt": "a"})", {"document: \"completion\" is missing"}},
      {R"({"messages": {}})", {"document.messages: wanted an array"}},
      {R"({"messages": [{"role": "user"}]})",
       {"document.messages[0]: \"content\" is missing"}},
      {R"({"messages": [{"role": "tool", "content": "a"}]})",
       {"messages[0].role", "system, user or assistant, got \"tool\""}},
      {"{\"text\": \"\xC3(\"}", {"wanted UTF-8; byte 11 is 0xc3"}},
      {R"({"text": "\ud800"})", {"wanted JSON"}},
      {R"({"text": "a", "score": 1e999})", {"number overflow parsing"}}};
  for (const auto& [line, messages] : cases) {
    const Strings found = Read("x.jsonl", "{\"text\": \"fine\"}\n" + line);
    ASSERT_EQ(found.size(), 2u) << line;
    EXPECT_THAT(found[1], ::testing::HasSubstr("x.jsonl:2: "));
    for (const std::string& message : messages) {
      EXPECT_THAT(found[1], ::testing::HasSubstr(message));
    }
  }
  EXPECT_THAT(Read("x.txt", "ab\xFF")[0],
              ::testing::HasSubstr("x.txt: wanted UTF-8; byte 3 is 0xff"));
  EXPECT_THAT(
      ReadDocuments(PathOf("none.jsonl"),
                    [](const auto&, const auto&) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kNotFound, "none.jsonl"));
}

TEST(DocumentReaderTest, StopsWhereATakerFails) {
  ASSERT_OK(WriteFile(PathOf("s.jsonl"), "{\"text\":\"a\"}\n{\"text\":"));
  const auto refuse = [](const Document&, const std::string& place) {
    return absl::InvalidArgumentError("no " + place);
  };
  EXPECT_THAT(ReadDocuments(PathOf("s.jsonl"), refuse),
              StatusIs(kInvalid, "no "));
}

TEST(DocumentReaderTest, KnowsWhatIsEmpty) {
  EXPECT_TRUE(IsEmpty(TextDocument{}));
  EXPECT_TRUE(IsEmpty(CompletionDocument{"a", ""}));
  EXPECT_TRUE(IsEmpty(ChatDocument{}));
  EXPECT_FALSE(IsEmpty(TextDocument{" "}));
  EXPECT_FALSE(IsEmpty(CompletionDocument{"", "b"}));
}

// Lines longer than what is read at once.
TEST(LineReaderTest, LinesOfAnyLength) {
  Strings lines;
  for (size_t length :
       {1048575, 5, 0, 1048575, 1048576, 1048577, 3000000, 0, 2}) {
    lines.push_back(std::string(length, static_cast<char>('a' + length % 7)));
  }
  // A line of 1048575 and "\r\n" is one whose end is read in two parts.
  for (const auto& [between, end] :
       std::vector<std::pair<std::string, std::string>>{
           {"\n", ""}, {"\n", "\n"}, {"\r\n", ""}, {"\r\n", "\r\n"}}) {
    std::string content = absl::StrJoin(lines, between) + end;
    ASSERT_OK(WriteFile(PathOf("lines"), content));
    auto reader = LineReader::Open(PathOf("lines"));
    ASSERT_OK(reader);
    std::string line;
    for (const std::string& expected : lines) {
      const auto more = reader->Next(line);
      ASSERT_OK(more);
      ASSERT_TRUE(*more);
      EXPECT_TRUE(line == expected) << line.size();
    }
    EXPECT_FALSE(*reader->Next(line));
    EXPECT_EQ(reader->line_number(), 9);
  }
}

}  // namespace
}  // namespace tessera
