#include "fsdp/device_mesh.h"

#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/status.h"

namespace tessera {
namespace {

absl::Status BadText(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "mesh \"", text, "\": ", why,
      "; write it as \"4\", \"2x4\" or \"dp_replicate=2,dp_shard=4\", where "
      "one size may be -1"));
}

absl::StatusOr<int> ParseSize(const std::string& text,
                              const std::string& size) {
  int value = 0;
  if (!absl::SimpleAtoi(size, &value) || (value < 1 && value != -1)) {
    return BadText(text, absl::StrCat("\"", size, "\" is no size"));
  }
  return value;
}

absl::StatusOr<MeshShape> ParseNamed(const std::string& text) {
  std::optional<int> replicate;
  std::optional<int> shard;
  const std::vector<std::string> items = absl::StrSplit(text, ',');
  for (const std::string& item : items) {
    const size_t equal = item.find('=');
    if (equal == std::string::npos) {
      return BadText(text, absl::StrCat("\"", item, "\" is no NAME=SIZE"));
    }
    const std::string name = item.substr(0, equal);
    if (name != "dp_replicate" && name != "dp_shard") {
      return BadText(text, absl::StrCat("there is no axis \"", name, "\""));
    }
    std::optional<int>& size = name == "dp_shard" ? shard : replicate;
    if (size.has_value()) {
      return BadText(text, absl::StrCat("axis \"", name, "\" comes twice"));
    }
    ASSIGN_OR_RETURN(size, ParseSize(text, item.substr(equal + 1)));
  }
  return MeshShape{.replicate = replicate.value_or(1),
                   .shard = shard.value_or(-1),
                   .has_replicate_axis = replicate.has_value()};
}

}  // namespace

std::string MeshShape::ToString() const {
  return has_replicate_axis ? absl::StrCat(replicate, "x", shard)
                            : absl::StrCat(shard);
}

absl::StatusOr<MeshShape> ParseMeshShape(const std::string& text) {
  if (text.find('=') != std::string::npos) return ParseNamed(text);
  const std::vector<std::string> sizes = absl::StrSplit(text, 'x');
  if (sizes.size() > 2) return BadText(text, "it has more than two axes");
  MeshShape shape{.has_replicate_axis = sizes.size() == 2};
  ASSIGN_OR_RETURN(shape.shard, ParseSize(text, sizes.back()));
  if (shape.has_replicate_axis) {
    ASSIGN_OR_RETURN(shape.replicate, ParseSize(text, sizes.front()));
  }
  return shape;
}

absl::StatusOr<MeshShape> ResolveMeshShape(const MeshShape& shape,
                                           int world_size) {
  const auto fail = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device mesh dp_replicate=", shape.replicate,
        " x dp_shard=", shape.shard, " over ", world_size, " ranks: ", why));
  };
  MeshShape full = shape;
  if (full.replicate > 1) full.has_replicate_axis = true;
  if (full.replicate == -1 && full.shard == -1) {
    return fail("only one size can be -1");
  }
  for (const int size : {full.replicate, full.shard}) {
    if (size < 1 && size != -1) return fail("a size is at least 1, or -1");
  }
  int& open = full.shard == -1 ? full.shard : full.replicate;
  const int given = full.shard == -1 ? full.replicate : full.shard;
  if (open == -1) {
    if (world_size % given != 0) {
      return fail(absl::StrCat(given, " does not divide ", world_size));
    }
    open = world_size / given;
    full.has_replicate_axis |= shape.replicate == -1;
  }
  if (full.replicate * full.shard != world_size) {
    return fail(absl::StrCat("the sizes make ", full.replicate * full.shard));
  }
  return full;
}

namespace {

// Every rank wants the same grid.
absl::Status AgreeOnShape(Communicator& world, const MeshShape& shape) {
  ASSIGN_OR_RETURN(const std::vector<std::string> shapes,
                   world.AllGatherBytes(shape.ToString(), "device mesh"));
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    if (shapes[rank] == shapes[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "device mesh: rank 0 wants ", shapes[0], " and rank ", rank, " ",
        shapes[rank], " (dp_replicate x dp_shard); all ranks need the same"));
  }
  return absl::OkStatus();
}

// first, first + step, ...: `count` ranks.
std::vector<int> Ranks(int first, int step, int count) {
  std::vector<int> ranks(count);
  for (int i = 0; i < count; ++i) ranks[i] = first + i * step;
  return ranks;
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceMesh>> DeviceMesh::Create(
    const std::shared_ptr<Communicator>& world, const MeshShape& shape) {
  absl::StatusOr<MeshShape> resolved =
      ResolveMeshShape(shape, world->world_size());
  RETURN_IF_ERROR(world->AgreeOnStatus(resolved.status(), "device mesh"));
  RETURN_IF_ERROR(AgreeOnShape(*world, *resolved));

  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh);
  mesh->shape_ = *resolved;
  mesh->world_ = world;
  const int shard_size = mesh->shape_.shard;
  if (mesh->shape_.replicate == 1) {
    mesh->shard_ = world;
    return mesh;
  }
  const int row = world->rank() / shard_size;
  const int column = world->rank() % shard_size;
  ASSIGN_OR_RETURN(mesh->shard_,
                   world->Split(Ranks(row * shard_size, 1, shard_size),
                                absl::StrCat("shard", row)));
  if (shard_size == 1) {
    mesh->replicate_ = world;
    return mesh;
  }
  ASSIGN_OR_RETURN(
      mesh->replicate_,
      world->Split(Ranks(column, shard_size, mesh->shape_.replicate),
                   absl::StrCat("replicate", column)));
  return mesh;
}

}  // namespace tessera
