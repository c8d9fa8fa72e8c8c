#include "runtime/data/tokenizer/read_steps.h"

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/status.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

// A value by the name that files give it.
template <typename T>
struct Named {
  const char* name;
  T value;
};

template <typename T, size_t N>
const T* Find(const std::array<Named<T>, N>& all, const std::string& name) {
  for (const Named<T>& named : all) {
    if (name == named.name) return &named.value;
  }
  return nullptr;
}

template <typename T, size_t N>
[[noreturn]] void RefuseName(const JsonNode& node, const std::string& key,
                             const std::array<Named<T>, N>& all) {
  std::string known;
  for (const Named<T>& named : all) {
    known += (known.empty() ? "" : ", ") + std::string(named.name);
  }
  const JsonNode value = node.At(key);
  value.Refuse("\"" + Shortened(value.AsText()) +
               "\" is not supported; is: " + known);
}

template <typename T, size_t N>
const T& FindOrRefuse(const JsonNode& node, const std::string& key,
                      const std::array<Named<T>, N>& all) {
  const T* found = Find(all, node.Text(key));
  if (found == nullptr) RefuseName(node, key, all);
  return *found;
}

// A type and how to read what is of it.
template <typename Result>
using Reader = Result (*)(const JsonNode&);

template <typename Result, size_t N>
Result ReadByType(const JsonNode& node,
                  const std::array<Named<Reader<Result>>, N>& readers) {
  return FindOrRefuse(node, "type", readers)(node);
}

template <typename Result>
std::vector<Result> ReadAll(const JsonNode& node, const std::string& key,
                            Reader<Result> read) {
  std::vector<Result> steps;
  for (const JsonNode& item : node.Items(key)) steps.push_back(read(item));
  return steps;
}

// {"String": ...} or {"Regex": ...}
Pattern ReadPattern(const JsonNode& node) {
  const JsonNode pattern = node.At("pattern");
  if (pattern.Has("String")) return Pattern::Literal(pattern.Text("String"));
  if (!pattern.Has("Regex")) pattern.Refuse("wanted \"String\" or \"Regex\"");
  absl::StatusOr<Pattern> regex = Pattern::Regex(pattern.Text("Regex"));
  if (!regex.ok()) {
    pattern.At("Regex").Refuse(std::string(regex.status().message()));
  }
  return *std::move(regex);
}

SplitBehavior ReadBehavior(const JsonNode& node) {
  static constexpr std::array<Named<SplitBehavior>, 5> kBehaviors = {{
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  return FindOrRefuse(node, "behavior", kBehaviors);
}

// Older files say add_prefix_space.
PrependScheme ReadPrependScheme(const JsonNode& node) {
  static constexpr std::array<Named<PrependScheme>, 3> kSchemes = {{
      {"always", PrependScheme::kAlways},
      {"first", PrependScheme::kFirst},
      {"never", PrependScheme::kNever},
  }};
  const bool add_prefix_space = node.Flag("add_prefix_space", true);
  if (!node.Has("prepend_scheme")) {
    return add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  }
  const PrependScheme scheme = FindOrRefuse(node, "prepend_scheme", kSchemes);
  if (!add_prefix_space && scheme != PrependScheme::kNever) {
    node.Refuse(
        "add_prefix_space is false, but prepend_scheme is not \"never\"");
  }
  return scheme;
}

template <NormalForm form>
NormalizerPointer ReadNormalForm(const JsonNode&) {
  return UnicodeNormalizer(form);
}

NormalizerPointer ReadNormalizerSequence(const JsonNode& node) {
  return NormalizerSequence(
      ReadAll<NormalizerPointer>(node, "normalizers", ReadNormalizer));
}

PreTokenizerPointer ReadByteLevel(const JsonNode& node, bool rewrite) {
  return ByteLevelPreTokenizer(
      {.add_prefix_space = node.Flag("add_prefix_space", true),
       .use_regex = node.Flag("use_regex", true),
       .rewrite = rewrite});
}

PreTokenizerPointer ReadPreTokenizerStep(const JsonNode& node, bool is_last);

PreTokenizerPointer ReadPreTokenizerSequence(const JsonNode& node,
                                             bool is_last) {
  std::vector<PreTokenizerPointer> steps;
  const std::vector<JsonNode> items = node.Items("pretokenizers");
  for (size_t i = 0; i < items.size(); ++i) {
    const bool last = is_last && i + 1 == items.size();
    steps.push_back(ReadPreTokenizerStep(items[i], last));
  }
  return PreTokenizerSequence(std::move(steps));
}

PreTokenizerPointer ReadPreTokenizerStep(const JsonNode& node, bool is_last) {
  using Step = PreTokenizerPointer (*)(const JsonNode&, bool);
  static constexpr std::array<Named<Step>, 8> kSteps = {{
      {"ByteLevel",
       [](const JsonNode& n, bool last) { return ReadByteLevel(n, !last); }},
      {"Split",
       [](const JsonNode& n, bool) {
         return SplitPreTokenizer(ReadPattern(n), ReadBehavior(n),
                                  n.Flag("invert", false));
       }},
      {"Digits",
       [](const JsonNode& n, bool) {
         return DigitsPreTokenizer(n.Flag("individual_digits", false));
       }},
      {"Metaspace",
       [](const JsonNode& n, bool) {
         return MetaspacePreTokenizer(
             {.replacement = ToUtf8(n.Character("replacement")),
              .prepend_scheme = ReadPrependScheme(n),
              .split = n.Flag("split", true)});
       }},
      {"Whitespace",
       [](const JsonNode&, bool) { return WhitespacePreTokenizer(); }},
      {"WhitespaceSplit",
       [](const JsonNode&, bool) { return WhitespaceSplitPreTokenizer(); }},
      {"Punctuation",
       [](const JsonNode& n, bool) {
         return PunctuationPreTokenizer(
             n.Has("behavior") ? ReadBehavior(n) : SplitBehavior::kIsolated);
       }},
      {"Sequence", ReadPreTokenizerSequence},
  }};
  return FindOrRefuse(node, "type", kSteps)(node, is_last);
}

IdTemplate ReadTemplate(const JsonNode& node) {
  IdTemplate items;
  const JsonNode special_tokens = node.At("special_tokens");
  for (const JsonNode& item : node.Items("single")) {
    if (item.Has("Sequence")) {
      const JsonNode id = item.At("Sequence").At("id");
      if (id.AsText() != "A") id.Refuse("a single text is \"A\"");
      items.emplace_back(std::nullopt);
      continue;
    }
    if (!item.Has("SpecialToken")) {
      item.Refuse("wanted \"Sequence\" or \"SpecialToken\"");
    }
    const JsonNode id = item.At("SpecialToken").At("id");
    if (!special_tokens.Has(id.AsText())) {
      id.Refuse("\"" + Shortened(id.AsText()) +
                "\" is not among special_tokens");
    }
    std::vector<int32_t> ids;
    for (const JsonNode& n : special_tokens.At(id.AsText()).Items("ids")) {
      ids.push_back(n.AsIndex());
    }
    items.emplace_back(std::move(ids));
  }
  return items;
}

// "cls": ["<s>", 0] in front of the text, and "sep": ["</s>", 2] behind it.
IdTemplate ReadClsAndSep(const JsonNode& node) {
  const auto id = [&node](const char* key) {
    const std::vector<JsonNode> token = node.Items(key);
    if (token.size() != 2) node.At(key).Refuse("wanted [token, id]");
    return std::vector<int32_t>{token[1].AsIndex()};
  };
  return {id("cls"), std::nullopt, id("sep")};
}

void ReadTemplates(const JsonNode& node, std::vector<IdTemplate>& templates);

void ReadProcessorSequence(const JsonNode& node,
                           std::vector<IdTemplate>& templates) {
  for (const JsonNode& item : node.Items("processors")) {
    ReadTemplates(item, templates);
  }
}

void ReadTemplates(const JsonNode& node, std::vector<IdTemplate>& templates) {
  using Read = void (*)(const JsonNode&, std::vector<IdTemplate>&);
  constexpr Read kClsAndSep = [](const JsonNode& n,
                                 std::vector<IdTemplate>& t) {
    t.push_back(ReadClsAndSep(n));
  };
  static constexpr std::array<Named<Read>, 5> kProcessors = {{
      {"TemplateProcessing",
       [](const JsonNode& n, std::vector<IdTemplate>& t) {
         t.push_back(ReadTemplate(n));
       }},
      {"RobertaProcessing", kClsAndSep},
      {"BertProcessing", kClsAndSep},
      // Changes offsets only.
      {"ByteLevel", [](const JsonNode&, std::vector<IdTemplate>&) {}},
      {"Sequence", ReadProcessorSequence},
  }};
  FindOrRefuse(node, "type", kProcessors)(node, templates);
}

DecoderPointer ReadDecoderSequence(const JsonNode& node) {
  return DecoderSequence(
      ReadAll<DecoderPointer>(node, "decoders", ReadDecoder));
}

}  // namespace

NormalizerPointer ReadNormalizer(const JsonNode& node) {
  static constexpr std::array<Named<Reader<NormalizerPointer>>, 10> kReaders = {
      {
          {"NFC", ReadNormalForm<NormalForm::kNFC>},
          {"NFD", ReadNormalForm<NormalForm::kNFD>},
          {"NFKC", ReadNormalForm<NormalForm::kNFKC>},
          {"NFKD", ReadNormalForm<NormalForm::kNFKD>},
          {"Lowercase", [](const JsonNode&) { return LowercaseNormalizer(); }},
          {"Prepend",
           [](const JsonNode& n) {
             return PrependNormalizer(n.Text("prepend"));
           }},
          {"Replace",
           [](const JsonNode& n) {
             return ReplaceNormalizer(ReadPattern(n), n.Text("content"));
           }},
          {"Strip",
           [](const JsonNode& n) {
             return StripNormalizer(n.Flag("strip_left"),
                                    n.Flag("strip_right"));
           }},
          {"StripAccents",
           [](const JsonNode&) {
             return ReplaceNormalizer(*Pattern::Regex("\\p{M}"), "");
           }},
          {"Sequence", ReadNormalizerSequence},
      }};
  return ReadByType(node, kReaders);
}

PreTokenizerPointer ReadPreTokenizer(const JsonNode& node) {
  return ReadPreTokenizerStep(node, /*is_last=*/true);
}

PostProcessor ReadPostProcessor(const JsonNode& node) {
  std::vector<IdTemplate> templates;
  ReadTemplates(node, templates);
  return PostProcessor(std::move(templates));
}

DecoderPointer ReadDecoder(const JsonNode& node) {
  static constexpr std::array<Named<Reader<DecoderPointer>>, 7> kReaders = {{
      {"ByteLevel", [](const JsonNode&) { return ByteLevelDecoder(); }},
      {"Replace",
       [](const JsonNode& n) {
         return ReplaceDecoder(ReadPattern(n), n.Text("content"));
       }},
      {"ByteFallback", [](const JsonNode&) { return ByteFallbackDecoder(); }},
      {"Fuse", [](const JsonNode&) { return FuseDecoder(); }},
      {"Strip",
       [](const JsonNode& n) {
         return StripDecoder(n.Character("content"), n.Index("start"),
                             n.Index("stop"));
       }},
      {"Metaspace",
       [](const JsonNode& n) {
         return MetaspaceDecoder(n.Character("replacement"),
                                 ReadPrependScheme(n));
       }},
      {"Sequence", ReadDecoderSequence},
  }};
  return ReadByType(node, kReaders);
}

bool EndsWithByteLevel(const JsonNode& pre_tokenizer) {
  if (pre_tokenizer.IsNull()) return false;
  const std::string type = pre_tokenizer.Text("type");
  if (type == "ByteLevel") return true;
  if (type != "Sequence") return false;
  const std::vector<JsonNode> steps = pre_tokenizer.Items("pretokenizers");
  return !steps.empty() && EndsWithByteLevel(steps.back());
}

}  // namespace tessera
