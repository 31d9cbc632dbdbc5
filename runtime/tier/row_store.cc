// SPDX-License-Identifier: Apache-2.0
// RowStore over either kind of tier.
#include "runtime/tier/row_store.h"

#include "runtime/tier/mirror_tier.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {
namespace {

tl::unexpected<Error> noRoom(const Tier& tier, Bytes wanted) {
  return fail(
      ErrorCode::kNoSpace,
      "%s has no room for a table of %llu bytes in one piece (%llu of its %llu bytes are in "
      "use); give it more, or name another tier",
      tier.name(), static_cast<unsigned long long>(wanted.value()),
      static_cast<unsigned long long>(tier.used().value()),
      static_cast<unsigned long long>(tier.capacity().value()));
}

class DirectStore final : public RowStore {
 public:
  explicit DirectStore(DirectTier& tier) : tier_(tier) {}
  TierKind kind() const override { return TierKind::kDirect; }
  Result<FrameRun> allocate(Bytes size) override {
    if (size > tier_.capacity()) return noRoom(tier_, size);  // before rounding up
    const PageCount wanted = toPages(Bytes(roundUp(size.value(), kGranuleSize)));
    auto run = tier_.allocate(wanted);
    if (!run) return noRoom(tier_, size);
    if (run->count == wanted) return run;
    tier_.release(*run);
    return noRoom(tier_, size);
  }
  void release(FrameRun run) override { tier_.release(run); }
  void preferHuge(FrameRun run) override { tier_.preferHuge(run); }
  std::byte* memory(FrameRun run) const override { return tier_.frameMemory(run.first); }
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea&) override {
    return fail(ErrorCode::kUnsupported, "%s is read in place", tier_.name());
  }

 private:
  DirectTier& tier_;
};

/// Of memory servers, one or several.
template <typename FarTier>
class FetchStore final : public RowStore {
 public:
  explicit FetchStore(FarTier& tier) : tier_(tier) {}
  TierKind kind() const override { return TierKind::kFetch; }
  Result<FrameRun> allocate(Bytes size) override {
    if (size > tier_.capacity()) return noRoom(tier_, size);  // before rounding up
    return tier_.allocateArea(toPages(size));
  }
  void release(FrameRun run) override { tier_.release(run); }
  std::byte* memory(FrameRun) const override { return nullptr; }
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area) override {
    return tier_.openRows(area);
  }

 private:
  FarTier& tier_;
};

}  // namespace

std::unique_ptr<RowStore> rowStoreInPlace(DirectTier& tier) {
  return std::make_unique<DirectStore>(tier);
}
std::unique_ptr<RowStore> RemoteTier::rowStore() {
  if (seal_ != nullptr) return nullptr;
  return std::make_unique<FetchStore<RemoteTier>>(*this);
}
std::unique_ptr<RowStore> MirrorTier::rowStore() {
  if (sealed()) return nullptr;
  return std::make_unique<FetchStore<MirrorTier>>(*this);
}

}  // namespace tidepool
