#include "tools/flag_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

std::vector<absl::CommandLineFlag*> FlagsOf(const std::string& source) {
  std::vector<absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (flag->Filename().find(source) != std::string::npos) {
      flags.push_back(flag);
    }
  }
  std::sort(flags.begin(), flags.end(),
            [](const absl::CommandLineFlag* a, const absl::CommandLineFlag* b) {
              return a->Name() < b->Name();
            });
  return flags;
}

std::vector<std::string> NamesOf(const std::string& source) {
  std::vector<std::string> names;
  for (const absl::CommandLineFlag* flag : FlagsOf(source)) {
    names.emplace_back(flag->Name());
  }
  return names;
}

// Of the command line.
std::set<std::string>& SeenNames() {
  static std::set<std::string> names;
  return names;
}

// Of flag files.
std::set<std::string>& NamesInFiles() {
  static std::set<std::string> names;
  return names;
}

// The flag of that name, or of "noNAME"; empty if there is none.
std::string KnownName(const std::string& name) {
  if (absl::FindCommandLineFlag(name) != nullptr) return name;
  const std::string rest = name.starts_with("no") ? name.substr(2) : "";
  return absl::FindCommandLineFlag(rest) != nullptr ? rest : "";
}

bool IsNumeric(char c) { return (c >= '0' && c <= '9') || c == '.'; }

// "name" of "--name=value"; empty of what is no flag.
std::string NameIn(const std::string& argument) {
  // "-1" is the value of the flag before it.
  if (argument.size() < 2 || argument[0] != '-' || IsNumeric(argument[1])) {
    return "";
  }
  const size_t begin = argument.starts_with("--") ? 2 : 1;
  return argument.substr(begin, argument.find('=') - begin);
}

int Distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i));
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1,
                         diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// What other trainers, of transformers, Accelerate, PEFT and llm.c, call it.
const std::map<std::string, std::string>& NamesElsewhere() {
  static const std::map<std::string, std::string> names = {
      {"adam_epsilon", "eps"},
      {"bf16", "mixed_precision"},
      {"batch_size", "batch"},
      {"block_size", "seq"},
      {"checkpointing_steps", "save_every"},
      {"dataset", "data"},
      {"dataset_name", "data"},
      {"eval_steps", "eval_every"},
      {"fp16", "mixed_precision"},
      {"fsdp", "sharding_strategy"},
      {"fsdp_activation_checkpointing", "activation_checkpointing"},
      {"fsdp_backward_prefetch", "backward_prefetch"},
      {"fsdp_forward_prefetch", "forward_prefetch"},
      {"fsdp_reshard_after_forward", "reshard_after_forward"},
      {"fsdp_sharding_strategy", "sharding_strategy"},
      {"gradient_accumulation_steps", "accumulate"},
      {"gradient_checkpointing", "activation_checkpointing"},
      {"learning_rate", "lr"},
      {"logging_steps", "log_every"},
      {"lora_modules", "lora_target_modules"},
      {"lora_r", "lora_rank"},
      {"lora_target", "lora_target_modules"},
      {"lora_targets", "lora_target_modules"},
      {"max_grad_norm", "clip"},
      {"max_length", "seq"},
      {"max_new_tokens", "tokens"},
      {"max_seq_len", "seq"},
      {"max_seq_length", "seq"},
      {"max_steps", "steps"},
      {"max_train_steps", "steps"},
      {"model_name_or_path", "model"},
      {"nproc_per_node", "ranks"},
      {"num_epochs", "epochs"},
      {"num_processes", "ranks"},
      {"num_train_epochs", "epochs"},
      {"output_dir", "out"},
      {"per_device_train_batch_size", "batch"},
      {"r", "lora_rank"},
      {"resume_from_checkpoint", "resume"},
      {"save_steps", "save_every"},
      {"save_total_limit", "keep_last"},
      {"sequence_length", "seq"},
      {"target_modules", "lora_target_modules"},
      {"tokens_per_step", "batch"},
      {"train_batch_size", "batch"},
      {"train_file", "data"},
      {"warmup_steps", "warmup"},
      {"world_size", "ranks"}};
  return names;
}

absl::Status UnknownName(const std::string& what, const std::string& name,
                         const std::string& source) {
  const std::vector<std::string> known = NamesOf(source);
  std::string plain = name;
  std::replace(plain.begin(), plain.end(), '-', '_');
  const auto elsewhere = NamesElsewhere().find(plain);
  const bool here =
      elsewhere != NamesElsewhere().end() &&
      std::find(known.begin(), known.end(), elsewhere->second) != known.end();
  // With what it means here: a batch may be that of a rank elsewhere.
  return absl::InvalidArgumentError(absl::StrCat(
      what, "unknown option \"", name, "\"; ",
      here ? absl::StrCat("here it is \"", elsewhere->second, "\": ",
                          absl::FindCommandLineFlag(elsewhere->second)->Help())
           : absl::StrCat("the nearest is \"", Nearest(plain, known), "\"")));
}

absl::StatusOr<std::string> PlainValue(const YAML::Node& node) {
  if (node.IsScalar()) return node.as<std::string>();
  if (node.IsNull()) return std::string();
  if (!node.IsSequence()) {
    return absl::InvalidArgumentError("wanted a value or a list of values");
  }
  std::vector<std::string> items;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) {
      return absl::InvalidArgumentError("wanted a list of plain values");
    }
    items.push_back(item.as<std::string>());
  }
  return absl::StrJoin(items, ",");
}

absl::Status SetFlag(const std::string& where, const std::string& name,
                     const YAML::Node& node, const std::string& source) {
  if (name == "config") {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "config: a file of options names no other"));
  }
  const std::vector<std::string> names = NamesOf(source);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return UnknownName(where, name, source);
  }
  const absl::StatusOr<std::string> value = PlainValue(node);
  if (!value.ok()) return Annotate(value.status(), absl::StrCat(where, name));
  std::string error;
  if (!absl::FindCommandLineFlag(name)->ParseFrom(*value, &error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, name, ": \"", *value, "\": ", error));
  }
  NamesInFiles().insert(name);
  return absl::OkStatus();
}

// Of the flag argv[i]: the parser would end the process at a wrong one.
absl::Status CheckValue(const std::string& name, int i, int argc, char** argv) {
  absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
  const std::string argument = argv[i];
  const size_t equals = argument.find('=');
  std::string value;
  if (equals != std::string::npos) {
    value = argument.substr(equals + 1);
  } else if (flag->IsOfType<bool>()) {
    return absl::OkStatus();
  } else if (i + 1 < argc) {
    value = argv[i + 1];
  }
  std::string error;
  if (flag->ParseFrom(value, &error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": \"", value, "\": ", error));
}

}  // namespace

std::string Nearest(const std::string& name,
                    const std::vector<std::string>& names) {
  std::string nearest;
  int best = 0;
  for (const std::string& candidate : names) {
    const int distance = Distance(name, candidate);
    if (nearest.empty() || distance < best) {
      nearest = candidate;
      best = distance;
    }
  }
  return nearest;
}

std::string FindConfigFlag(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--") break;
    if (argument.starts_with("--")) argument.erase(0, 1);
    if (argument == "-config") return i + 1 < argc ? argv[i + 1] : "";
    if (argument.starts_with("-config=")) return argument.substr(8);
  }
  return "";
}

absl::Status LoadFlagFile(const std::string& path, const std::string& source) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  YAML::Node file;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": wanted one document, got ", documents.size(),
                       "; take out the lines \"---\" between them"));
    }
    if (!documents.empty()) file = documents[0];
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
  if (file.IsNull()) return absl::OkStatus();
  if (!file.IsMap()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": wanted lines of the form \"option: value\""));
  }
  std::set<std::string> seen;
  for (const auto& item : file) {
    if (!item.first.IsScalar()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": an option's name is no plain text"));
    }
    const std::string where =
        absl::StrCat(path, ":", item.first.Mark().line + 1, ": ");
    const auto name = item.first.as<std::string>();
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, "\"", name, "\" is given twice; leave one of them"));
    }
    RETURN_IF_ERROR(SetFlag(where, name, item.second, source));
  }
  return absl::OkStatus();
}

absl::Status CheckArguments(int argc, char** argv, const std::string& source) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") break;
    const std::string name = NameIn(argument);
    // The parser's own are there only when it is linked.
    if (name.empty() || name.starts_with("help")) continue;
    const std::string known = KnownName(name);
    if (known.empty()) return UnknownName("", name, source);
    SeenNames().insert(known);
    if (name == known) RETURN_IF_ERROR(CheckValue(name, i, argc, argv));
  }
  return absl::OkStatus();
}

bool IsGiven(const std::string& name) {
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  return SeenNames().contains(name) ||
         (flag != nullptr && flag->CurrentValue() != flag->DefaultValue());
}

bool IsNamed(const std::string& name) {
  return SeenNames().contains(name) || NamesInFiles().contains(name);
}

std::vector<FlagValue> FlagValues(const std::string& source) {
  std::vector<FlagValue> values;
  for (const absl::CommandLineFlag* flag : FlagsOf(source)) {
    const absl::string_view name = flag->Name();
    values.push_back({{name.data(), name.size()}, flag->CurrentValue()});
  }
  return values;
}

}  // namespace tessera
