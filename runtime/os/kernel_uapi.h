// SPDX-License-Identifier: Apache-2.0
// Kernel interfaces that Debian 12's headers (6.1) do not know yet: UFFDIO_MOVE (6.8),
// UFFDIO_POISON (6.6), asynchronous write-protection and PAGEMAP_SCAN (6.7). Numbers and layouts
// are the kernel's ABI. For use inside os/ only.
#pragma once

#include <linux/ioctl.h>
#include <linux/types.h>
#include <linux/userfaultfd.h>

namespace tidepool::uapi {

inline constexpr __u64 kFeaturePoison = 1ull << 14;
inline constexpr __u64 kFeatureWpAsync = 1ull << 15;
inline constexpr __u64 kFeatureMove = 1ull << 16;

struct UffdioPoison {
  uffdio_range range;
  __u64 mode;
  __s64 updated;
};
struct UffdioMove {
  __u64 dst;
  __u64 src;
  __u64 len;
  __u64 mode;
  __s64 move;
};
inline constexpr unsigned long kUffdioPoison = _IOWR(UFFDIO, 0x08, UffdioPoison);
inline constexpr unsigned long kUffdioMove = _IOWR(UFFDIO, 0x05, UffdioMove);
inline constexpr __u64 kMoveDontWake = 1ull << 0;

// Of UFFDIO_CONTINUE (6.4+).
inline constexpr __u64 kContinueWriteProtected = 1ull << 1;

// /dev/userfaultfd (6.1+).
inline constexpr unsigned long kUserfaultfdIocNew = _IO(0xAA, 0x00);

struct PageRegion {
  __u64 start;
  __u64 end;
  __u64 categories;
};
struct PmScanArg {
  __u64 size;
  __u64 flags;
  __u64 start;
  __u64 end;
  __u64 walk_end;
  __u64 vec;
  __u64 vec_len;
  __u64 max_pages;
  __u64 category_inverted;
  __u64 category_mask;
  __u64 category_anyof_mask;
  __u64 return_mask;
};
inline constexpr unsigned long kPagemapScan = _IOWR('f', 16, PmScanArg);
inline constexpr __u64 kPageIsWpAllowed = 1ull << 0;
inline constexpr __u64 kPageIsWritten = 1ull << 1;
inline constexpr __u64 kPageIsPresent = 1ull << 3;

}  // namespace tidepool::uapi
