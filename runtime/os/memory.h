// SPDX-License-Identifier: Apache-2.0
// The seam to mmap(2) and its family, and to what /proc says of this process. Free functions over
// system calls: thread-safe, no allocation. They call the kernel, never an interposed libc symbol,
// so the shim's own mmap wrapper is not entered.
#pragma once

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::os {

/// Reserves address space that faults until mapped; `alignment` is a power of two >= a page.
Result<uintptr_t> reserve(Bytes size, Bytes alignment);
/// The same at a fixed address. False if anything is there.
bool reserveAt(uintptr_t address, Bytes size);
void unmap(uintptr_t address, Bytes size);

/// Makes the range fresh private memory, readable and writable, replacing what is there.
Status mapFresh(uintptr_t address, Bytes size);
/// Takes the range out of use: its memory is freed and a touch ends in SIGSEGV.
Status mapNothing(uintptr_t address, Bytes size);
/// The same for what the program has no use of: core dumps leave it out.
Status mapUnused(uintptr_t address, Bytes size);
/// Maps `size` bytes of `fd` from `offset` shared at `address`, replacing what is there.
Status mapShared(uintptr_t address, int fd, Bytes offset, Bytes size);
Status protect(uintptr_t address, Bytes size, int protection);
/// MADV_DONTNEED: frees the range's private memory, also what the program locked with mlock.
Status discard(uintptr_t address, Bytes size);
/// MADV_DONTFORK.
void keepFromChildren(uintptr_t address, Bytes size);
/// MADV_DONTDUMP and MADV_DODUMP. Errors: kNoMemory, for one more mapping.
Status keepFromDumps(uintptr_t address, Bytes size);
Status dumpAgain(uintptr_t address, Bytes size);
/// discard() up to the first locked page; returns how much that is.
Bytes discardUnlocked(uintptr_t address, Bytes size);
/// Makes present pages the process's own again, which fork() left shared with a child that may be
/// gone by now. Contents stay. False if the range is not writable, or memory is short.
bool unshare(uintptr_t address, Bytes size);
/// Makes absent pages of a writable mapping present. False if memory is short.
bool populate(uintptr_t address, Bytes size);
/// Moves a mapping over another one (MREMAP_FIXED): the target changes in one step. The source
/// stays mapped, empty: a hole there could be given to anybody's mmap, and be overwritten later.
Status moveMapping(uintptr_t from, uintptr_t to, Bytes size);
/// Makes present file pages of a shared mapping absent from the page table (their contents stay).
void zapShared(uintptr_t address, Bytes size);
/// Makes present pages of a shared mapping huge ones where the kernel can (MADV_COLLAPSE,
/// Linux 6.1): whole granules, each with one page present at least. Merely a wish: false if it did
/// not happen.
bool makeHuge(uintptr_t address, Bytes size);
/// What lies there does not go into core dumps: it is Tidepool's own, or its own way to a file.
void leaveOutOfDumps(uintptr_t address, Bytes size);
/// Takes that back: the program may put something there by mprotect.
void includeInDumps(uintptr_t address, Bytes size);
/// Frees [offset, offset + size) of a file: it reads as zeros from then on.
Status punchHole(int fd, Bytes offset, Bytes size);

/// A number below `end` that differs from run to run, as addresses do; 0 where those do not
/// (debuggers see to that).
uint64_t randomBelow(uint64_t end);

Result<UniqueFd> createMemfd(const char* name, Bytes size);
/// The same, of that size for good: nobody's mapping of it can end in SIGBUS.
Result<UniqueFd> createSealedMemfd(const char* name, Bytes size);

/// How many processes there can be at a time.
uint32_t mostProcesses();

/// Anonymous memory of this process as the kernel counts it (resident minus file and shared).
/// `statm` is an open /proc/self/statm.
Bytes anonymousMemory(int statm);
Result<UniqueFd> openStatm();
/// What is left of a process whose first thread has ended: how many threads there are beside it (0:
/// it goes on), and the status that it passed to exit(2). `stat` is an open /proc/self/stat.
struct LeftBehind {
  int threads = 0;
  int status = 0;
};
LeftBehind leftBehind(int stat);
Result<UniqueFd> openStat();
/// How much of its anonymous memory is this process's share, in 1/1024, when what is still shared
/// since a fork() is divided among those who share it. Takes milliseconds a gigabyte. 1024 if the
/// kernel does not say.
uint32_t ownShareOfAnonymous();

/// What PAGEMAP_SCAN says of one run of pages.
struct PageRun {
  uintptr_t start = 0;
  uintptr_t end = 0;
};

/// Finds runs of present pages in [address, address + size) that are not write-protected: never
/// armed, or written since. Fills `out`, returns the number of runs, and sets `walked` to where it
/// stopped. `pagemap` is an open /proc/self/pagemap.
/// Errors: kUnsupported on kernels before 6.7.
Result<size_t> scanWritten(int pagemap, uintptr_t address, Bytes size, PageRun* out,
                           size_t capacity, uintptr_t* walked);
/// As scanWritten for all pages present in the page table.
Result<size_t> scanPresent(int pagemap, uintptr_t address, Bytes size, PageRun* out,
                           size_t capacity, uintptr_t* walked);
Result<UniqueFd> openPagemap();

}  // namespace tidepool::os
