#include "checkpoint/huggingface/load_weights.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/huggingface/load_target.h"
#include "checkpoint/whole_weight.h"
#include "fsdp/comm/json_of_rank0.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// How much of a tensor is read, converted or sent at once.
constexpr int64_t kChunkBytes = 16 << 20;

using Targets = std::vector<LoadTarget>;
using Matches = std::vector<WeightMatch>;

absl::StatusOr<Matches> Match(const Targets& targets,
                              const WeightSource& source,
                              const MatchOptions& options) {
  std::vector<WantedWeight> wanted;
  for (const LoadTarget& target : targets) wanted.push_back(target.wanted);
  return MatchWeights(wanted, source.weights(), options);
}

// Calls f(begin, length) for chunks of [begin, end).
absl::Status ForEachChunk(
    int64_t begin, int64_t end, DType dtype,
    const std::function<absl::Status(int64_t, int64_t)>& f) {
  const int64_t step = kChunkBytes / ElementBytes(dtype);
  for (int64_t at = begin; at < end; at += step) {
    RETURN_IF_ERROR(f(at, std::min(step, end - at)));
  }
  return absl::OkStatus();
}

// As ForEachChunk; all at once where the target wants that.
absl::Status ForEachPiece(
    const LoadTarget& target, int64_t begin, int64_t end, DType dtype,
    const std::function<absl::Status(int64_t, int64_t)>& f) {
  if (target.row_major()) return ForEachChunk(begin, end, dtype, f);
  return f(0, target.wanted.shape.num_elements());
}

DType SourceType(const WeightSource& source, const WeightMatch& match) {
  return *source.weights().at(*match.name).dtype;
}

absl::Status ReadTarget(const LoadTarget& target, const WeightMatch& match,
                        const WeightSource& source) {
  if (!match.name.has_value() || target.local.num_elements() == 0) {
    return absl::OkStatus();
  }
  const int64_t end = target.begin + target.local.num_elements();
  return ForEachPiece(target, target.begin, end, SourceType(source, match),
                      [&](int64_t begin, int64_t length) -> absl::Status {
                        ASSIGN_OR_RETURN(
                            const Tensor piece,
                            source.ReadElements(*match.name, begin, length,
                                                target.local.device()));
                        return Try([&] { target.Take(piece, begin); });
                      });
}

// A parameter that is tied here may stand twice in a file.
absl::Status WarnOfUntied(const Targets& targets, const Matches& matches,
                          const WeightSource& source) {
  for (size_t i = 0; i < targets.size(); ++i) {
    for (const std::string& other : matches[i].tied) {
      ASSIGN_OR_RETURN(const bool same,
                       HaveSameValues(source, *matches[i].name, other));
      if (same) continue;
      spdlog::warn(
          "load weights: {} and {} are tied in the model but differ in the "
          "file; {} is used",
          *matches[i].name, other, *matches[i].name);
    }
  }
  return absl::OkStatus();
}

// Everything that must be the same in the files that ranks see.
std::string Listing(const WeightSource& source) {
  std::string text;
  for (const auto& [name, weight] : source.weights()) {
    absl::StrAppend(&text, name, " ", weight.type_name, " ",
                    weight.shape.ToString(), "\n");
  }
  return text;
}

absl::Status CompareListings(const WeightSource& source, Communicator& world) {
  const std::string mine = ChecksumText(Checksum(Listing(source)));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world.AllGatherBytes(mine, "load weights"));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "load weights: rank ", rank,
        " finds other tensors than rank 0 in the files; give all ranks the "
        "same files, or let rank 0 alone read"));
  }
  return absl::OkStatus();
}

absl::Status EachRankReads(const Targets& targets, const WeightSource& source,
                           const LoadOptions& options, Communicator& world) {
  const absl::StatusOr<Matches> matches = Match(targets, source, options.match);
  RETURN_IF_ERROR(world.AgreeOnStatus(matches.status(), "match weights"));
  RETURN_IF_ERROR(CompareListings(source, world));
  absl::Status status;
  for (size_t i = 0; i < targets.size() && status.ok(); ++i) {
    status = Try([&] { return ReadTarget(targets[i], (*matches)[i], source); });
  }
  if (status.ok() && world.rank() == 0) {
    status = Try([&] { return WarnOfUntied(targets, *matches, source); });
  }
  return world.AgreeOnStatus(status, "read weights");
}

// [Note: rank 0 reads] Rank 0 says of each target the type that it is going to
// send, -1 for nothing; then every rank takes part in the same broadcasts. No
// error of one rank ends them, of the disk or for lack of memory: rank 0 sends
// what it has, and all ranks learn of the error at the end.
class Handout {
 public:
  Handout(const Targets& targets, const WeightSource* source,
          const LoadOptions& options, Communicator& world)
      : targets_(targets), source_(source), options_(options), world_(world) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Plan());
    RETURN_IF_ERROR(
        world_.AgreeOnStatus(MakeBuffer(), "memory for weights to come"));
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (types_[i].has_value()) RETURN_IF_ERROR(Send(i));
    }
    if (reader() && status_.ok()) {
      status_ = Try([&] { return WarnOfUntied(targets_, matches_, *source_); });
    }
    return world_.AgreeOnStatus(status_, "hand out weights");
  }

 private:
  bool reader() const { return world_.rank() == 0; }

  absl::Status Plan() {
    ASSIGN_OR_RETURN(const nlohmann::json plan,
                     JsonOfRank0(
                         world_, [&] { return MakePlan(); }, "match weights"));
    return world_.AgreeOnStatus(TakePlan(plan), "weights to come");
  }

  // Of rank 0: the type of each target's source, and what the target is.
  absl::StatusOr<nlohmann::json> MakePlan() {
    ASSIGN_OR_RETURN(matches_, Match(targets_, *source_, options_.match));
    nlohmann::json plan = nlohmann::json::array();
    for (size_t i = 0; i < matches_.size(); ++i) {
      const int type = matches_[i].name.has_value()
                           ? static_cast<int>(SourceType(*source_, matches_[i]))
                           : -1;
      plan.push_back({type, Describe(targets_[i])});
    }
    return plan;
  }

  static std::string Describe(const LoadTarget& target) {
    return absl::StrCat(target.wanted.names[0], " ",
                        target.wanted.shape.ToString());
  }

  absl::Status TakePlan(const nlohmann::json& plan) {
    types_.resize(targets_.size());
    for (size_t i = 0; i < targets_.size(); ++i) {
      const std::string has =
          i < plan.size() ? plan[i].at(1).get<std::string>() : "nothing";
      if (has != Describe(targets_[i])) {
        return absl::FailedPreconditionError(
            absl::StrCat("load weights: rank 0 has \"", has, "\", wanted ",
                         Describe(targets_[i])));
      }
      const int type = plan[i].at(0).get<int>();
      if (type >= 0) types_[i] = static_cast<DType>(type);
    }
    return absl::OkStatus();
  }

  absl::Status Send(size_t i) {
    const LoadTarget& target = targets_[i];
    return ForEachPiece(target, 0, target.wanted.shape.num_elements(),
                        *types_[i], [&](int64_t begin, int64_t length) {
                          return SendPiece(i, begin, length);
                        });
  }

  // For the largest piece.
  absl::Status MakeBuffer() {
    int64_t largest = 0;
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (!types_[i].has_value()) continue;
      const int64_t num_bytes =
          targets_[i].wanted.shape.num_elements() * ElementBytes(*types_[i]);
      largest = std::max(largest, targets_[i].row_major()
                                      ? std::min(num_bytes, kChunkBytes)
                                      : num_bytes);
    }
    if (largest == 0) return absl::OkStatus();
    const Device device = targets_[0].local.device();
    return Try([&] {
      buffer_ = Tensor::Empty({largest}, {DType::kUInt8, device});
    });
  }

  absl::Status SendPiece(size_t i, int64_t begin, int64_t length) {
    Tensor piece = Tensor::View(buffer_.storage(), 0, {length}, *types_[i]);
    if (reader() && status_.ok()) status_ = Read(i, begin, piece);
    // Some types are not known to collectives; bytes are.
    const Tensor bytes[] = {Tensor::View(
        piece.storage(), piece.storage_offset() * ElementBytes(*types_[i]),
        {piece.num_bytes()}, DType::kUInt8)};
    RETURN_IF_ERROR(world_.Broadcast(bytes, 0, ComputeStream(piece.device()),
                                     targets_[i].wanted.names[0]));
    if (status_.ok()) status_ = Try([&] { targets_[i].Take(piece, begin); });
    return absl::OkStatus();
  }

  // `piece` becomes what is sent: the file itself where it is mapped, which
  // the sender of a broadcast only reads.
  absl::Status Read(size_t i, int64_t begin, Tensor& piece) {
    absl::StatusOr<Tensor> read;
    RETURN_IF_ERROR(Try([&] {
      read = source_->ReadElements(*matches_[i].name, begin,
                                   piece.num_elements(), piece.device());
    }));
    RETURN_IF_ERROR(read.status());
    piece = *std::move(read);
    return absl::OkStatus();
  }

  const Targets& targets_;
  const WeightSource* const source_;
  const LoadOptions& options_;
  Communicator& world_;
  Matches matches_;  // Of rank 0.
  std::vector<std::optional<DType>> types_;
  Tensor buffer_;        // As bytes.
  absl::Status status_;  // Of this rank alone.
};

void LogWarnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    spdlog::warn("load weights: {}", warning);
  }
}

}  // namespace

absl::Status LoadWeights(FullyShardedModule& module, const WeightSource* source,
                         const LoadOptions& options) {
  Communicator& world = *module.mesh().world();
  const absl::StatusOr<Targets> targets = TargetsOf(module);
  absl::Status status = targets.status();
  if (status.ok() && source == nullptr &&
      (!options.rank0_reads || world.rank() == 0)) {
    status = absl::InvalidArgumentError("load weights: no files were given");
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load weights"));
  if (options.rank0_reads) {
    return Handout(*targets, source, options, world).Run();
  }
  return EachRankReads(*targets, *source, options, world);
}

absl::Status LoadFolderWeights(FullyShardedModule& module,
                               const std::string& folder,
                               const LoadOptions& options) {
  Communicator& world = *module.mesh().world();
  absl::StatusOr<FolderWeights> weights = FolderWeights();
  if (!options.rank0_reads || world.rank() == 0) {
    weights = OpenFolderWeights(folder);
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(weights.status(), "open weights"));
  if (world.rank() == 0) LogWarnings(weights->warnings);
  const absl::Status status =
      LoadWeights(module, weights->source.get(), options);
  return status.ok() ? status : Annotate(status, folder);
}

absl::Status LoadWeights(Module& module, const WeightSource& source,
                         const MatchOptions& options) {
  ASSIGN_OR_RETURN(const Targets targets, TargetsOf(module));
  ASSIGN_OR_RETURN(const Matches matches, Match(targets, source, options));
  for (size_t i = 0; i < targets.size(); ++i) {
    RETURN_IF_ERROR(ReadTarget(targets[i], matches[i], source));
  }
  return WarnOfUntied(targets, matches, source);
}

absl::Status LoadFolderWeights(Module& module, const std::string& folder,
                               const MatchOptions& options) {
  ASSIGN_OR_RETURN(const FolderWeights weights, OpenFolderWeights(folder));
  LogWarnings(weights.warnings);
  const absl::Status status = LoadWeights(module, *weights.source, options);
  return status.ok() ? status : Annotate(status, folder);
}

void ZeroStartValues(Module& module, const Initializer& initializer) {
  for (const NamedVariable& p : module.own_parameters()) {
    initializer.Constant(p.variable, 0);
  }
  module.ResetParameters(initializer);
}

}  // namespace tessera
