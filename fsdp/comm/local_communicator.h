// Collectives of ranks on one host that read each other's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/shared_control.h"
#include "fsdp/comm/staging_plan.h"

namespace tessera {

// What a rank of a group can see of the others' memory.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  // How the others find these bytes of this rank; segment -1 when they cannot.
  virtual PartRef Export(const void* data, int64_t num_bytes) const = 0;
  // What `rank` exported, readable here.
  virtual const void* Import(int rank, const PartRef& ref) const = 0;
  // A buffer of `rank` that all can read, for what cannot be exported.
  // 64-byte aligned; the same size on all ranks.
  virtual void* Staging(int rank) const = 0;
  virtual int64_t staging_bytes() const = 0;
};

// [Note: phases]
// A collective is: post the header and where the parts are; barrier, after
// which all ranks have released what they gather into and have completed what
// they reduce; compare headers; move bytes; barrier, after which all have read
// and written. Parts that are not visible to all ranks go through the staging
// buffers in rounds: fill one half, barrier, read the others' halves, and go on
// with the other half, so that one barrier a round is enough. A barrier alone
// needs only the first.
//
// An all-gather into common memory writes this rank's part after the first
// barrier, and nothing when it is in place.
class LocalCommunicator : public HostCommunicator {
 public:
  ~LocalCommunicator() override;

 protected:
  LocalCommunicator(CommunicatorGroup group, const WaitOptions& wait,
                    std::unique_ptr<SharedControl> control,
                    std::unique_ptr<PeerMemory> peers);

  SharedControl& control() { return *control_; }
  PeerMemory& peers() { return *peers_; }

  // Inside a collective: every rank's `value`, at most kMaxSmallBytes, by rank.
  absl::StatusOr<std::vector<std::string>> ExchangeSmall(
      const CollectiveHeader& header, const std::string& value);
  // The first failing rank's status, or OK. The outer status is that of the
  // exchange.
  absl::StatusOr<absl::Status> AgreeSmall(const CollectiveHeader& header,
                                          const absl::Status& status);

  bool IsCommon(const Tensor& tensor) const override;
  absl::Status RunAllGather(const CollectiveHeader& header,
                            std::span<const GatherMemory> parts) override;
  absl::Status RunReduceScatter(const CollectiveHeader& header,
                                std::span<const ReduceMemory> parts,
                                const Reduction& reduction,
                                std::span<uint8_t> flags) override;
  absl::Status RunAllReduce(const CollectiveHeader& header,
                            std::span<const TensorMemory> tensors,
                            const Reduction& reduction) override;
  absl::Status RunBroadcast(const CollectiveHeader& header,
                            std::span<const TensorMemory> tensors,
                            int root) override;
  absl::Status RunBarrier(const CollectiveHeader& header) override;
  absl::Status RunFailTogether(const CollectiveHeader& header,
                               const absl::Status& status) override;
  void AbortWaits(const absl::Status& status) override;

 private:
  using Round = StagingRound;
  std::vector<Round> PlanRounds(std::span<const int64_t> part_bytes,
                                int copies) const;
  char* StagingHalf(int rank) const;

  Posted& StartPosting(const CollectiveHeader& header);
  static std::string SmallOf(const Posted& posted);
  PartRef ExportPart(const void* data, int64_t num_bytes, size_t index) const;
  absl::Status Meet(const CollectiveHeader& header);  // Barrier and comparison.
  // How a part moves; the same answer on all ranks, after Meet.
  enum class Route { kCommon, kDirect, kStaged };
  Route RouteOf(const CollectiveHeader& header, size_t index) const;
  const char* ImportPart(const CollectiveHeader& header, int rank,
                         size_t index) const;

  std::vector<int64_t> PostTensors(const CollectiveHeader& header,
                                   std::span<const TensorMemory> tensors);
  PartRef ExportGather(const GatherMemory& part, size_t index) const;
  absl::Status GatherStaged(const std::string& operation,
                            std::span<const GatherMemory> parts,
                            std::span<const int64_t> part_bytes);
  void ReducePiece(const ReduceMemory& part, const Reduction& reduction,
                   std::span<const void* const> inputs, int64_t begin_element,
                   int64_t num_elements) const;
  absl::Status ReduceStaged(const std::string& operation,
                            std::span<const ReduceMemory> parts,
                            std::span<const int64_t> part_bytes,
                            const Reduction& reduction);
  absl::Status AllReduceStaged(const std::string& operation,
                               std::span<const TensorMemory> tensors,
                               std::span<const int64_t> part_bytes,
                               const Reduction& reduction);
  absl::Status AllReduceSmall(const CollectiveHeader& header,
                              std::span<const TensorMemory> tensors,
                              const Reduction& reduction);
  absl::Status AllReduceDirect(const CollectiveHeader& header,
                               std::span<const TensorMemory> tensors,
                               std::span<const int64_t> part_bytes,
                               const Reduction& reduction);
  absl::Status BroadcastStaged(const std::string& operation,
                               std::span<const TensorMemory> tensors,
                               std::span<const int64_t> part_bytes, int root);
  void CopyToStaging(std::span<const TensorMemory> tensors, const Round& round);
  void ReduceFromStaging(std::span<const TensorMemory> tensors,
                         const Round& round, const Reduction& reduction);
  // The ranks share the sums of the round, and copy each other's.
  absl::Status ReduceSharesInStaging(const std::string& operation,
                                     std::span<const TensorMemory> tensors,
                                     const Round& round,
                                     const Reduction& reduction);

  std::unique_ptr<SharedControl> control_;
  std::unique_ptr<PeerMemory> peers_;
  uint64_t staging_round_ = 0;
};

}  // namespace tessera
