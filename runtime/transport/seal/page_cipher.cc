// SPDX-License-Identifier: Apache-2.0
// PageCipher, and the loading of what it stands on.
#include "runtime/transport/seal/page_cipher.h"

#include <dlfcn.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/base/format.h"
#include "runtime/base/mutex.h"

namespace tidepool {
namespace {

constexpr char kLibrary[] = "libtidepool-seal.so";

struct Loaded {
  Mutex mutex;
  const TidepoolSealApi* api TP_GUARDED_BY(mutex) = nullptr;
};
constinit Loaded loaded;

/// From beside what this code is part of, or from lib beside its folder: not from wherever the
/// program has its libraries looked for.
void* openLibrary() {
  Dl_info own;
  if (dladdr(&loaded, &own) == 0 || own.dli_fname == nullptr) return nullptr;
  const std::string_view file(own.dli_fname);
  const size_t slash = file.rfind('/');
  if (slash == std::string_view::npos) return nullptr;
  for (const char* const place : {"", "../lib/"}) {
    char path[4096 + 64];
    formatText(path, sizeof path, "%.*s%s%s", static_cast<int>(slash + 1), file.data(), place,
               kLibrary);
    if (void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

Result<const TidepoolSealApi*> load() {
  MutexLock lock(loaded.mutex);
  if (loaded.api != nullptr) return loaded.api;
  void* const library = openLibrary();
  if (library == nullptr) {
    return fail(ErrorCode::kUnsupported, "pages cannot be sealed: %s is not installed", kLibrary);
  }
  auto* const function = reinterpret_cast<TidepoolSealFunction*>(dlsym(library, "tidepoolSeal"));
  loaded.api = function != nullptr ? function() : nullptr;
  if (loaded.api == nullptr) {
    return fail(ErrorCode::kUnsupported, "pages cannot be sealed: %s has no AES-256-GCM", kLibrary);
  }
  return loaded.api;
}

}  // namespace

Result<PageCipher> PageCipher::create(const Key& key) {
  const auto api = load();
  if (!api) return tl::unexpected(api.error());
  std::unique_ptr<void, Close> cipher((*api)->open(key.data()), Close{*api});
  if (cipher == nullptr) return fail(ErrorCode::kNoMemory, "no memory for a cipher");
  return PageCipher(std::move(cipher));
}

bool PageCipher::seal(const Nonce& nonce, const std::byte* page, std::byte* sealed) {
  return api().seal(cipher_.get(), nonce.data(), page, kPageSize, sealed, sealed + kPageSize);
}

bool PageCipher::unseal(const Nonce& nonce, const std::byte* sealed, std::byte* page) {
  if (api().unseal(cipher_.get(), nonce.data(), sealed, kPageSize, sealed + kPageSize, page)) {
    return true;
  }
  memset(page, 0, kPageSize);
  return false;
}

}  // namespace tidepool
