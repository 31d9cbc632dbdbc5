// SPDX-License-Identifier: Apache-2.0
// The table of the kinds of far memory. A row is defined beside its tier.
#include <array>

#include "runtime/tier/far_kind.h"

namespace tidepool {

extern const FarKind kCxlKind, kDaxKind, kNumaKind, kRemoteKind, kMirrorKind, kFileKind,
    kFabricKind, kAutoKind;

std::span<const FarKind* const> farKinds() {
  static constexpr std::array kKinds = {&kCxlKind,    &kDaxKind,  &kNumaKind,   &kRemoteKind,
                                        &kMirrorKind, &kFileKind, &kFabricKind, &kAutoKind};
  return kKinds;
}

}  // namespace tidepool
