// Training on documents: conversations, completions and texts, packed into
// rows.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/testing/small_transformers.h"
#include "tests/training/model_folders.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

const char* const kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class FineTuneDataTest : public SmallRuns {
 protected:
  // Conversations of equal length, in bytes of the plain format.
  std::string Chats(const std::string& name, int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      const char letter = static_cast<char>('a' + i % 26);
      const nlohmann::json chat = {
          {"messages",
           {{{"role", "user"}, {"content", std::string("Say ") + letter}},
            {{"role", "assistant"}, {"content", std::string("A ") + letter}}}}};
      absl::StrAppend(&lines, chat.dump(), "\n");
    }
    EXPECT_OK(WriteFile(Path(name), lines));
    return Path(name);
  }

  ProgramResult TrainOn(const std::string& data, const std::string& out,
                        const Strings& more) const {
    Strings all = {"--data=" + data,   "--out=" + Path(out), "--batch=6",
                   "--steps=6",        "--warmup=2",         "--lr=1e-2",
                   "--eval_batches=2", "--sample_tokens=8",  "--log_every=1",
                   "--threads=1",      "--ranks=2"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram("tools/train", all);
  }

  // A GPT-2 of 128 positions with a chat template.
  std::string Folder(const std::string& chat_template) const {
    GPT2Config config = SmallGpt2(/*vocab_size=*/702);
    config.n_positions = 128;
    const nlohmann::json tokenizer = {{"chat_template", chat_template}};
    MakeModelFolder(Path("model"), "gpt2", config, DType::kFloat32,
                    {{"tokenizer_config.json", tokenizer.dump()}});
    return Path("model");
  }

  double Last(const std::string& out, const char* what) const {
    return Metrics(Path(out + "/metrics.jsonl")).back()[what];
  }
};

double FirstValidation(const std::string& output) {
  const std::string before = "step 0  validation ";
  return std::stod(output.substr(output.find(before) + before.size()));
}

TEST_F(FineTuneDataTest, ConversationsAreLearnedAndGoOn) {
  const std::string model = "--model=" + Folder(kChatMl);
  const std::string data = Chats("chat.jsonl", 60);
  const Strings flags = {model,          "--seq=128",      "--steps=20",
                         "--batch=4",    "--accumulate=2", "--save_every=7",
                         "--keep_last=0"};
  const ProgramResult whole = TrainOn(data, "whole", flags);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr("data: 60 documents;"));
  EXPECT_THAT(whole.output, HasSubstr("% of them in the loss"));
  EXPECT_LT(Last("whole", "validation_loss"),
            FirstValidation(whole.output) - 1);
  // From the middle: the same rows in the same order, to the last bit.
  Strings more = flags;
  more.push_back("--resume=" + Path("whole/checkpoints/step-00000007"));
  const ProgramResult rest = TrainOn(data, "rest", more);
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  ExpectSameFiles(Path("whole/model.safetensors"),
                  Path("rest/model.safetensors"));
  // On another number of ranks the same batches, whose sums are ordered
  // otherwise.
  more.push_back("--ranks=1");
  const ProgramResult one = TrainOn(data, "one", more);
  ASSERT_EQ(one.exit_code, 0) << one.output;
  EXPECT_NEAR(Last("one", "loss"), Last("whole", "loss"), 1e-3);
  const ProgramResult other = TrainOn(Chats("other.jsonl", 59), "other", more);
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.output, HasSubstr("its text is"));
}

// A step over all rows sees each document once: packed or one a row, its loss
// is the same, so that no document knows of another.
TEST_F(FineTuneDataTest, ARowIsItsDocuments) {
  const std::string data = Chats("chat.jsonl", 30);
  const int64_t length = std::string("User: Say a\nAssistant: A a\n").size();
  for (const char* kind : {"gpt2", "llama"}) {
    const std::string base = absl::StrCat(kind, "_base");
    const ProgramResult run = Train(
        base, {absl::StrCat("--model=", kind), "--seq=128", "--steps=25"});
    ASSERT_EQ(run.exit_code, 0) << run.output;
    std::vector<double> losses;
    for (const auto& [seq, rows] : std::vector<std::pair<int64_t, int64_t>>{
             {length, 28}, {4 * length, 7}, {4 * length + 10, 7}}) {
      const std::string out = absl::StrCat(base, "_", seq);
      // The last in other ways: what they share is the batch.
      const bool other = seq == 4 * length + 10;
      const ProgramResult step = TrainOn(
          data, out,
          {"--model=" + Path(base), absl::StrCat("--seq=", seq),
           absl::StrCat("--batch=", rows), "--steps=1",
           "--validation_share=0.067",
           absl::StrCat("--activation_checkpointing=", other),
           absl::StrCat("--fsdp_version=", other ? 1 : 2),
           absl::StrCat("--ranks=", other ? 3 : 2),
           absl::StrCat("--compute_stream=", other ? "queued" : "inline")});
      ASSERT_EQ(step.exit_code, 0) << step.output;
      EXPECT_THAT(step.output, HasSubstr(absl::StrCat(rows, " rows of ", seq)));
      losses.push_back(Last(out, "loss"));
    }
    EXPECT_NEAR(losses[1], losses[0], 1e-5);
    EXPECT_NEAR(losses[2], losses[0], 1e-5);
  }
}

TEST_F(FineTuneDataTest, TextsAndCompletionsOfSeveralFiles) {
  std::string lines = "{\"text\": \"\"}\n";
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&lines, R"({"prompt": "Count ", "completion": ")", i,
                    "\"}\n", R"({"text": "The )", i, "th text.\"}\n");
  }
  ASSERT_OK(WriteFile(Path("mixed.jsonl"), lines));
  const std::string data = Path("mixed.jsonl") + "," + Path("text.txt");
  const ProgramResult run = TrainOn(
      data, "mixed", {"--layers=2", "--hidden=32", "--heads=2", "--seq=64"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("data: 61 documents (skipped: 1 empty"));
  const std::string warning = "documents with more than --seq=64 tokens: 1;";
  const size_t at = run.output.find(warning);
  ASSERT_NE(at, std::string::npos) << run.output;
  EXPECT_EQ(run.output.find(warning, at + 1), std::string::npos);
  const ProgramResult cut =
      TrainOn(data, "cut",
              {"--layers=2", "--hidden=32", "--heads=2", "--seq=64",
               "--long_documents=truncate", "--dry_run"});
  EXPECT_THAT(cut.output, HasSubstr("they lose their end"));
}

TEST_F(FineTuneDataTest, WrongDataEndsSoonAndSaysWhy) {
  const std::string chat = Chats("chat.jsonl", 5);
  ASSERT_OK(WriteFile(Path("bad.jsonl"), *ReadFile(chat) + "{\"text\": 1}\n"));
  ASSERT_OK(WriteFile(Path("few.jsonl"), "{\"text\": \"one\"}\n"));
  const std::string foreign =
      "--model=" + Folder("[INST] {{ messages }} [/INST]");
  const std::vector<std::pair<Strings, std::string>> cases = {
      {{"--data=" + Path("none.jsonl")}, "--data: "},
      {{"--data=" + chat, "--text=" + Path("text.txt")},
       "--text: wanted nothing beside --data"},
      {{"--long_documents=cut"}, "--long_documents: wanted split or truncate"},
      {{"--data=", "--long_documents=truncate"}, "wanted nothing without"},
      {{"--data=" + Path("bad.jsonl")},
       "bad.jsonl:6: document.text: wanted a string, got 1"},
      {{"--data=" + Path("few.jsonl")}, "wanted one for training"},
      {{foreign}, "chat.jsonl:1: chat_template: not understood"}};
  for (const auto& [arguments, message] : cases) {
    const ProgramResult run = TrainOn(chat, "wrong", arguments);
    EXPECT_NE(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr(message));
    EXPECT_LT(run.seconds, 15);
  }
}

}  // namespace
}  // namespace tessera
