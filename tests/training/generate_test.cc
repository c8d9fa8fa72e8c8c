// What generate takes from the model's folder, and what from its flags; and
// conversations.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Strings = std::vector<std::string>;

class GenerateTest : public SmallRuns {
 protected:
  GenerateTest() {
    const ProgramResult run =
        Train("model", {"--model=llama", "--seq=256", "--steps=15", "--ranks=1",
                        "--sample_tokens=0"});
    EXPECT_EQ(run.exit_code, 0) << run.output;
  }

  ProgramResult Run(const Strings& flags) const {
    Strings all = {"--model=" + Path("model")};
    all.insert(all.end(), flags.begin(), flags.end());
    return RunProgram("tools/generate", all);
  }

  std::string Generate(const Strings& flags) const {
    Strings all = {"--prompt=In the ", "--threads=1"};
    all.insert(all.end(), flags.begin(), flags.end());
    const ProgramResult run = Run(all);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run.output;
  }

  void Configure(const std::string& json) const {
    EXPECT_OK(WriteFile(Path("model/generation_config.json"), json));
  }
};

TEST_F(GenerateTest, TheModelsOwnValuesAreDefaults) {
  const std::string greedy = Generate({"--temperature=0", "--tokens=30"});
  const std::string sampled = Generate({"--tokens=30"});
  EXPECT_NE(greedy, sampled);
  Configure(R"({"do_sample": false, "max_new_tokens": 30})");
  EXPECT_EQ(Generate({}), greedy);
  EXPECT_EQ(Generate({"--temperature=0.8"}), sampled);
  EXPECT_LT(Generate({"--tokens=10"}).size(), greedy.size());
  Configure(R"({"do_sample": true, "top_k": 1})");
  EXPECT_EQ(Generate({"--tokens=30"}), greedy);
  Configure(R"({"top_p": 0.000001})");
  EXPECT_EQ(Generate({"--tokens=30"}), greedy);
  EXPECT_EQ(Generate({"--tokens=30", "--top_p=1"}), sampled);
  Configure(R"({"do_sample": false, "repetition_penalty": 50.0})");
  const std::string varied = Generate({"--tokens=30"});
  EXPECT_NE(varied, greedy);
  EXPECT_EQ(Generate({"--tokens=30", "--repetition_penalty=1"}), greedy);
  Configure(R"({"do_sample": false, "num_beams": 3})");
  EXPECT_THAT(Generate({"--tokens=30"}),
              HasSubstr("warning: generation_config.json: \"num_beams\" (3)"));
}

TEST_F(GenerateTest, TheModelsValuesOutOfRangeAreRefused) {
  for (const auto& [json, message] :
       std::vector<std::pair<std::string, std::string>>{
           {R"({"temperature": -2})", "temperature: wanted"},
           {R"({"min_p": 3})", "min_p: wanted 0 to 1, got 3"},
           {R"({"max_new_tokens": -10})",
            "max_new_tokens: wanted 0 to 1073741824, got -10"},
           {R"({"max_new_tokens": 9223372036854775807})",
            "max_new_tokens: wanted"}}) {
    Configure(json);
    const ProgramResult wrong = Run({"--prompt=In"});
    EXPECT_EQ(wrong.exit_code, 1) << json;
    EXPECT_THAT(wrong.output, HasSubstr("generation_config.json: " + message));
  }
}

TEST_F(GenerateTest, AConversationFollowsTheTemplate) {
  const Strings greedy = {"--temperature=0", "--tokens=20"};
  const auto with = [&](Strings more) {
    more.insert(more.end(), greedy.begin(), greedy.end());
    return Run(more).output;
  };
  // Without a template: plain lines. Only the answer is printed.
  const std::string text = "System: Be.\nUser: Hi\nAssistant:";
  EXPECT_EQ(text + with({"--chat", "--system=Be.", "--prompt=Hi"}),
            with({"--prompt=" + text}));
  EXPECT_OK(WriteFile(
      Path("model/chat_template.jinja"),
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + "
      "'\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if "
      "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"));
  const std::string ours =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(ours + with({"--chat", "--prompt=Hi"}), with({"--prompt=" + ours}));

  // Lines of standard input: the second answer knows of the first.
  const ProgramResult lines = RunProgram(
      "/bin/sh",
      {"-c", absl::StrCat(
                 "printf 'Hi\\nHi\\n' | tools/generate --model=", Path("model"),
                 " --chat --temperature=0 --tokens=20 --threads=1")});
  EXPECT_EQ(lines.exit_code, 0) << lines.output;
  const std::string first = with({"--chat", "--prompt=Hi"});
  ASSERT_TRUE(lines.output.starts_with(first)) << lines.output;
  const std::string second = lines.output.substr(first.size());
  const std::string answer = first.substr(0, first.size() - 1);
  const std::string both = absl::StrCat(
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
      answer.substr(answer.starts_with(" ") ? 1 : 0), "<|im_end|>\n", ours);
  EXPECT_EQ(both + second, with({"--prompt=" + both}));
}

TEST_F(GenerateTest, APromptThatIsTooLongIsWarnedOf) {
  const std::string warning =
      "warning: the prompt has 257 tokens, the model 256 positions";
  const auto generate = [&](int64_t num_bytes) {
    return Generate({"--prompt=" + std::string(num_bytes, 'a'), "--tokens=1"});
  };
  EXPECT_THAT(generate(257), HasSubstr(warning));
  EXPECT_THAT(generate(256), Not(HasSubstr("warning")));
}

TEST_F(GenerateTest, TheDefaultPromptIsNamed) {
  const ProgramResult run = Run({"--tokens=1", "--threads=1"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output,
              HasSubstr("no --prompt: goes on from \"In the beginning \"\n"));
  EXPECT_THAT(Generate({"--tokens=1"}), Not(HasSubstr("--prompt")));
}

TEST_F(GenerateTest, FlagsThatDoNotGoTogether) {
  for (const auto& [flags, message] :
       std::vector<std::pair<Strings, std::string>>{
           {{"--system=Be."}, "--system: wanted --chat beside it"},
           {{"--temperature=-1"}, "temperature: wanted 0 or more"},
           {{"--repetition_penalty=0"}, "repetition_penalty: wanted above 0"},
           {{"--adapter=" + Path("none")}, "adapter_config.json"},
           {{"--run=" + Path("model")}, "wanted --model or --run, got both"}}) {
    const ProgramResult run = Run(flags);
    EXPECT_NE(run.exit_code, 0) << message;
    EXPECT_THAT(run.output, HasSubstr(message));
  }
}

}  // namespace
}  // namespace tessera
