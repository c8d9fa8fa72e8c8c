#include "runtime/data/tokenizer/chat_template.h"

#include <nlohmann/json.hpp>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

const char* const kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const char* const kWithSystem =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
    "'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant."
    "<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const char* const kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";

// As Llama 3.1 and 3.2 have it, without the branches for tools.
const char* const kLlama31 =
    "{{- bos_token }}{%- if not date_string is defined %}"
    "{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now(\"%d %b %Y\") %}{%- else %}"
    "{%- set date_string = \"26 Jul 2024\" %}{%- endif %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system_message = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}"
    "{%- set system_message = \"\" %}{%- endif %}"
    "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"
    "{{- \"Cutting Knowledge Date: December 2023\\n\" }}"
    "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}{{- system_message }}"
    "{{- \"<|eot_id|>\" }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{%- endfor %}";
// As Qwen 3 has it, without the branches for tools.
const char* const kQwen3 =
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + "
    "messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- set ns = namespace(last_query_index=messages|length - 1) %}"
    "{%- for message in messages %}"
    "{%- set reasoning_content = content.split('</think>')[0] %}"
    "{%- if loop.index0 > ns.last_query_index %}"
    "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + "
    "reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}";

const std::vector<ChatMessage> kChat = {{"user", "Hi "}, {"assistant", "Yes"}};

TEST(ChatTemplateTest, ChatMl) {
  const auto chat = ChatTemplate::FromJinja(kChatMl);
  ASSERT_OK(chat);
  EXPECT_EQ(chat->format(), ChatFormat::kChatMl);
  EXPECT_EQ(JoinSegments(chat->Render(kChat, false)),
            "<|im_start|>user\nHi <|im_end|>\n"
            "<|im_start|>assistant\nYes<|im_end|>\n");
  EXPECT_EQ(JoinSegments(chat->Render({kChat[0]}, true)),
            "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, ChatMlWithASystemOfItsOwn) {
  const auto chat = ChatTemplate::FromJinja(kWithSystem);
  ASSERT_OK(chat);
  EXPECT_EQ(chat->default_system(), "You are a helpful assistant.");
  EXPECT_EQ(JoinSegments(chat->Render({kChat[0]}, false)),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi <|im_end|>\n");
  EXPECT_EQ(JoinSegments(chat->Render({{"system", "Be kind."}}, false)),
            "<|im_start|>system\nBe kind.<|im_end|>\n");
}

TEST(ChatTemplateTest, Llama3) {
  const auto chat = ChatTemplate::FromJinja(kLlama3);
  ASSERT_OK(chat);
  EXPECT_EQ(JoinSegments(chat->Render(kChat, true)),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi"
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes"
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplateTest, Llama31) {
  const auto chat = ChatTemplate::FromJinja(kLlama31);
  ASSERT_OK(chat);
  EXPECT_EQ(chat->format(), ChatFormat::kLlama31);
  const std::string dates =
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
      "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  const std::string user =
      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
  EXPECT_EQ(JoinSegments(chat->Render({kChat[0]}, false)), dates + user);
  EXPECT_EQ(JoinSegments(chat->Render({{"system", " Be kind. "}, kChat[0]},
                                      /*add_generation_prompt=*/true)),
            dates + "Be kind." + user +
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplateTest, Qwen3) {
  const auto chat = ChatTemplate::FromJinja(kQwen3);
  ASSERT_OK(chat);
  EXPECT_EQ(chat->format(), ChatFormat::kQwen3);
  const auto render = [&](const std::vector<ChatMessage>& messages) {
    return JoinSegments(chat->Render(messages, false));
  };
  const std::string hi = "<|im_start|>user\nHi <|im_end|>\n";
  const std::string answer = "<|im_start|>assistant\n";
  EXPECT_EQ(JoinSegments(chat->Render({kChat[0]}, true)), hi + answer);
  // The last answer shows that nothing was thought; earlier ones do not.
  EXPECT_EQ(render(kChat),
            hi + answer + "<think>\n\n</think>\n\nYes<|im_end|>\n");
  const ChatMessage thinks = {"assistant", "<think>\nHm.\n</think>\n\nNo"};
  EXPECT_EQ(render({kChat[0], kChat[1], kChat[0], thinks}),
            hi + answer + "Yes<|im_end|>\n" + hi + answer +
                "<think>\nHm.\n</think>\n\nNo<|im_end|>\n");
  // In history thoughts are lost.
  EXPECT_EQ(render({kChat[0], thinks, kChat[0]}),
            hi + answer + "No<|im_end|>\n" + hi);
  // Answers in a row: the first shows thoughts, if there are any.
  EXPECT_EQ(render({kChat[0], kChat[1], thinks, kChat[1]}),
            hi + answer + "Yes<|im_end|>\n" + answer +
                "<think>\nHm.\n</think>\n\nNo<|im_end|>\n" + answer +
                "<think>\n\n</think>\n\nYes<|im_end|>\n");
  EXPECT_EQ(render({{"system", "Be kind."}}),
            "<|im_start|>system\nBe kind.<|im_end|>\n");
  // What a tool gave is no question; without one all is history.
  const ChatMessage tool = {"user", "<tool_response>\n4\n</tool_response>"};
  EXPECT_EQ(render({kChat[0], thinks, tool, kChat[1]}),
            hi + answer + "<think>\nHm.\n</think>\n\nNo<|im_end|>\n" +
                "<|im_start|>user\n" + tool.content + "<|im_end|>\n" + answer +
                "<think>\n\n</think>\n\nYes<|im_end|>\n");
  EXPECT_EQ(render({kChat[1]}), answer + "Yes<|im_end|>\n");
}

TEST(ChatTemplateTest, Plain) {
  const ChatTemplate chat(ChatFormat::kPlain);
  EXPECT_EQ(JoinSegments(chat.Render(kChat, true)),
            "User: Hi \nAssistant: Yes\nAssistant:");
}

TEST(ChatTemplateTest, SegmentsOfTheAssistant) {
  EXPECT_EQ(ChatTemplate(ChatFormat::kPlain).Render(kChat, false)[2].text,
            "Assistant:");
  for (const char* jinja : {kChatMl, kLlama3}) {
    std::string trained;
    for (const ChatSegment& segment :
         ChatTemplate::FromJinja(jinja)->Render(kChat, true)) {
      if (segment.from_assistant) trained += segment.text;
    }
    EXPECT_EQ(trained, std::string("Yes") +
                           (jinja == kChatMl ? "<|im_end|>" : "<|eot_id|>"));
  }
}

TEST(ChatTemplateTest, RefusesOthersByWhatTheyHave) {
  const std::string chat_ml = kChatMl;
  const std::string llama3 = kLlama3;
  for (const auto& [jinja, what] :
       std::vector<std::pair<std::string, std::string>>{
           {"[INST] {{ messages }} [/INST]", "[INST]"},
           {chat_ml + llama3, "it begins with"},
           {chat_ml + "{{ '<think>' }}", "<think>"},
           {chat_ml + "{{ content | trim }}", "trim"},
           {llama3 + "Cutting Knowledge Date", "Cutting Knowledge"},
           {std::string(kLlama31) + "reasoning_content", "reasoning_content"},
           {std::string(kQwen3) + "{{ content | trim }}", "trim"}}) {
    EXPECT_THAT(ChatTemplate::FromJinja(jinja),
                StatusIs(absl::StatusCode::kUnimplemented, what));
  }
}

TEST(ChatTemplateTest, FromTokenizerConfig) {
  EXPECT_EQ(ChatTemplate::FromTokenizerConfig("{}")->format(),
            ChatFormat::kPlain);
  nlohmann::json json = {{"chat_template", kLlama3},
                         {"bos_token", {{"content", "<bos>"}}}};
  EXPECT_EQ(
      JoinSegments(
          ChatTemplate::FromTokenizerConfig(json.dump())->Render({}, false)),
      "<bos>");
  json["chat_template"] = {{{"name", "tool_use"}, {"template", "x"}},
                           {{"name", "default"}, {"template", kChatMl}}};
  json["bos_token"] = "<bos>";
  EXPECT_EQ(ChatTemplate::FromTokenizerConfig(json.dump())->format(),
            ChatFormat::kChatMl);
  json["chat_template"] = 7;
  EXPECT_THAT(ChatTemplate::FromTokenizerConfig(json.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, "chat_template"));
  EXPECT_THAT(ChatTemplate::FromTokenizerConfig("{"),
              StatusIs(absl::StatusCode::kInvalidArgument, "tokenizer_config"));
}

TEST(ChatTemplateTest, LoadsAFolder) {
  const std::string folder = ::testing::TempDir() + "/chat";
  ASSERT_OK(MakeFolders(folder));
  EXPECT_EQ(ChatTemplate::Load(folder)->format(), ChatFormat::kPlain);
  const nlohmann::json json = {{"chat_template", kLlama3}};
  ASSERT_OK(WriteFile(folder + "/tokenizer_config.json", json.dump()));
  EXPECT_EQ(ChatTemplate::Load(folder)->format(), ChatFormat::kLlama3);
  ASSERT_OK(WriteFile(folder + "/chat_template.jinja", kChatMl));
  EXPECT_EQ(ChatTemplate::Load(folder)->format(), ChatFormat::kChatMl);
}

}  // namespace
}  // namespace tessera
