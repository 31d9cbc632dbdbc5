# SPDX-License-Identifier: Apache-2.0
"""A program that has more memory than its host gives it: it writes its name and a number into every page, again and
again, and looks whether the last ones are there. SIGTERM: it looks once more, and ends with 0.

    tenant.py NAME
"""

import mmap
import signal
import sys
import zlib

PAGE = 4096
PAGES = 48 * 256  # 48 MiB
PAUSE = 0.2  # seconds for the others after each round: there are few processors


def main(name):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words = memoryview(memory).cast("Q")
    mine = zlib.crc32(name.encode()) << 32
    before = 0
    round_ = 0
    while signal.sigtimedwait({signal.SIGTERM}, PAUSE) is None:
        round_ += 1
        now = mine | round_ << 16
        for page in range(PAGES):
            at = page * (PAGE // 8)
            was = before | page if before else 0
            if words[at] != was or words[at + 511] != was:
                print(f"page {page} in round {round_}: {words[at]:x} and {words[at + 511]:x}, not {was:x}", flush=True)
                return 3
            words[at] = words[at + 511] = now | page
        before = now
        print(f"round {round_}", flush=True)
    for page in range(PAGES):
        if words[page * 512] != before | page or words[page * 512 + 511] != before | page:
            print(f"page {page} at the end: {words[page * 512]:x}, not {before | page:x}", flush=True)
            return 3
    print("good", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
