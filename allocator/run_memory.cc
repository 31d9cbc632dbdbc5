// SPDX-License-Identifier: Apache-2.0
// Managed memory from the preload library, through the table that it exports (run_api.h).
#include <dlfcn.h>

#include "allocator/memory_source.h"
#include "allocator/run_api.h"
#include "allocator/run_rows.h"

namespace tidepool {
namespace {

Status toStatus(const TidepoolRunError& error) {
  if (error.code == 0) return {};
  return fail(static_cast<ErrorCode>(error.code), "%s", error.text);
}

class RunMemory final : public MemorySource {
 public:
  explicit RunMemory(const TidepoolRunApi& api) : api_(api) {
    setRange(api.base, Bytes(api.bytes));
  }

  Result<void*> allocate(Bytes size, Bytes alignment) override {
    TidepoolRunError error{};
    void* const address = api_.allocate(size.value(), alignment.value(), &error);
    TP_TRY(toStatus(error));
    return address;
  }
  Status release(void* address, Bytes size) override {
    return call(api_.release, address, size.value());
  }
  Status discard(void* address, Bytes size) override {
    return call(api_.discard, address, size.value());
  }
  Status renew(void* address, Bytes size) override {
    return call(api_.renew, address, size.value());
  }
  Status place(void* address, Bytes size, Placement placement) override {
    return call(api_.place, address, size.value(), placement.raw());
  }
  Result<Residency> residency(const void* address, Bytes size) const override {
    TidepoolRunError error{};
    TidepoolRunResidency found{};
    api_.residency(address, size.value(), &found, &error);
    TP_TRY(toStatus(error));
    Residency out;
    out.empty = PageCount(found.empty);
    out.local = PageCount(found.local);
    out.leaving = PageCount(found.leaving);
    out.coming = PageCount(found.coming);
    out.lost = PageCount(found.lost);
    out.in_place = PageCount(found.in_place);
    for (size_t tier = 0; tier < out.far.size(); ++tier) out.far[tier] = PageCount(found.far[tier]);
    return out;
  }
  void willNeed(void* address, Bytes size) override { api_.willNeed(address, size.value()); }
  void cold(void* address, Bytes size) override { api_.cold(address, size.value()); }
  void pageOut(void* address, Bytes size) override { api_.pageOut(address, size.value()); }
  Status chargeLocal(Bytes size) override { return call(api_.chargeLocal, size.value()); }
  void dischargeLocal(Bytes size) override { api_.dischargeLocal(size.value()); }
  Result<std::unique_ptr<RowStore>> rowStore(size_t far_tier) override {
    return openRunRows(api_, far_tier);
  }
  const StatsPage* stats() override {
    const auto* page = static_cast<const StatsPage*>(api_.stats());
    return page->schema == kStatsSchema ? page : nullptr;
  }

 private:
  /// The table's functions tell of errors in their last argument.
  template <typename Function, typename... Arguments>
  static Status call(Function* function, Arguments... arguments) {
    TidepoolRunError error{};
    function(arguments..., &error);
    return toStatus(error);
  }

  const TidepoolRunApi& api_;  // the preload library's: for the life of the process
};

/// Null: this process is not one of `tidepool run`, or its memory is not managed.
Result<const TidepoolRunApi*> findApi() {
  const auto entry = reinterpret_cast<TidepoolRunEntry>(dlsym(RTLD_DEFAULT, kTidepoolRunSymbol));
  const TidepoolRunApi* const api = entry != nullptr ? entry() : nullptr;
  if (api != nullptr && (api->version != kTidepoolRunVersion || api->size < sizeof *api)) {
    return fail(ErrorCode::kUnsupported,
                "libtidepool and the preload library of `tidepool run` are of different versions; "
                "install the same one of both");
  }
  return api;
}

}  // namespace

Result<std::unique_ptr<MemorySource>> findRunMemory() {
  const auto api = findApi();
  if (!api) return tl::unexpected(api.error());
  if (*api == nullptr) return nullptr;
  return std::make_unique<RunMemory>(**api);
}

Result<Options> runOptions() {
  const auto api = findApi();
  if (!api) return tl::unexpected(api.error());
  char text[kConfTextCapacity];
  if (*api == nullptr || !(*api)->conf(text, sizeof text)) {
    return fail(ErrorCode::kInternal, "the options of the run cannot be read");
  }
  return parseOptions(text, nullptr);
}

}  // namespace tidepool
