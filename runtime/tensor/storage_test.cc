// Memory that goes and comes back under the views of it.
#include "runtime/tensor/storage.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "runtime/tensor/tensor.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int64_t kBytes = 4096;

int64_t BytesOf(MemoryCategory category) {
  return AllocatorOf(CurrentDevice()).stats().current(category);
}

TEST(Storage, MemoryIsCountedUnderTheCurrentCategory) {
  const int64_t before = BytesOf(MemoryCategory::kGradient);
  {
    const MemoryCategoryGuard guard(MemoryCategory::kGradient);
    const auto storage = Storage::Allocated(CurrentDevice(), kBytes);
    EXPECT_EQ(BytesOf(MemoryCategory::kGradient), before + kBytes);
    EXPECT_FALSE(storage->released());
  }
  EXPECT_EQ(BytesOf(MemoryCategory::kGradient), before);
}

TEST(Storage, AUseWhileReleasedNamesTheStorage) {
  const auto storage = Storage::Deferred(CurrentDevice(), kBytes, "h.0");
  const Tensor view = Tensor::View(storage, 8, {2, 3}, DType::kFloat32);
  EXPECT_TRUE(storage->released());
  EXPECT_THROWS_ERROR(view.data(), absl::StatusCode::kFailedPrecondition,
                      "\"h.0\" is released");
  EXPECT_THROWS_ERROR(view.view(), absl::StatusCode::kFailedPrecondition,
                      "\"h.0\" is released");
  const auto nameless = Storage::Allocated(CurrentDevice(), kBytes);
  nameless->Release();
  EXPECT_THROWS_ERROR(nameless->data(), absl::StatusCode::kFailedPrecondition,
                      "a tensor's storage is released");
}

TEST(Storage, ViewsFollowToNewMemory) {
  const int64_t before = BytesOf(MemoryCategory::kParameter);
  const auto storage = Storage::Deferred(CurrentDevice(), kBytes, "h.0");
  const Tensor view = Tensor::View(storage, 8, {2, 3}, DType::kFloat32);
  storage->Allocate(MemoryCategory::kParameter);
  EXPECT_EQ(BytesOf(MemoryCategory::kParameter), before + kBytes);
  EXPECT_EQ(view.data(), static_cast<char*>(storage->data()) + 8 * 4);
  storage->Release();
  EXPECT_EQ(BytesOf(MemoryCategory::kParameter), before);
  const auto owner = std::make_shared<std::vector<float>>(kBytes / 4, 2.0F);
  storage->Attach(owner->data(), owner);
  EXPECT_EQ(view.data(), owner->data() + 8);
  EXPECT_EQ(view.ToDoubles(), std::vector<double>(6, 2));
}

TEST(Storage, BorrowedMemoryKeepsItsOwnerUntilItIsReleased) {
  auto owner = std::make_shared<std::vector<uint8_t>>(kBytes, 7);
  const std::weak_ptr<void> alive = owner;
  void* const data = owner->data();
  const int64_t before = AllocatorOf(CurrentDevice()).stats().current_bytes;
  const auto storage =
      Storage::Borrowed(CurrentDevice(), data, kBytes, std::move(owner));
  EXPECT_EQ(AllocatorOf(CurrentDevice()).stats().current_bytes, before);
  EXPECT_EQ(storage->data(), data);
  EXPECT_FALSE(alive.expired());
  storage->Release();
  EXPECT_TRUE(alive.expired());
}

// The generation counts addresses, the version writes.
TEST(Storage, EachChangeOfAddressIsANewGeneration) {
  const auto storage = Storage::Deferred(CurrentDevice(), kBytes, "h.0");
  const uint64_t first = storage->generation();
  storage->Release();  // Nothing changes.
  EXPECT_EQ(storage->generation(), first);
  storage->Allocate(MemoryCategory::kParameter);
  storage->Release();
  storage->Allocate(MemoryCategory::kParameter);
  EXPECT_EQ(storage->generation(), first + 3);
  EXPECT_EQ(storage->version(), 0);
  storage->BumpVersion();
  EXPECT_EQ(storage->version(), 1);
  EXPECT_EQ(storage->generation(), first + 3);
}

TEST(Storage, MetaMemoryHasNoValues) {
  const int64_t before = AllocatorOf(CurrentDevice()).stats().current_bytes;
  const auto storage = Storage::Allocated(kMetaDevice, int64_t{1} << 50);
  EXPECT_EQ(AllocatorOf(CurrentDevice()).stats().current_bytes, before);
  EXPECT_FALSE(storage->released());
  EXPECT_THROWS_ERROR(storage->data(), absl::StatusCode::kFailedPrecondition,
                      "is on the meta device and has no values");
}

TEST(Storage, PoisonShowsMemoryThatWasNeverWritten) {
  Allocator& allocator = AllocatorOf(CurrentDevice());
  allocator.SetPoison(true);
  const auto storage = Storage::Allocated(CurrentDevice(), kBytes);
  const Tensor whole = Tensor::View(storage, 0, {kBytes}, DType::kUInt8);
  EXPECT_EQ(whole.ToVector<uint8_t>(), std::vector<uint8_t>(kBytes, 0xFF));
  allocator.SetPoison(false);
}

}  // namespace
}  // namespace tessera
