// SPDX-License-Identifier: Apache-2.0
// What this process holds, for tests that look for leaks: blocks of the heap, mappings, files,
// threads, resident memory. The first four are exact. Include it in one file of a program only: it
// replaces operator new and delete, which count.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <ostream>
#include <string>
#include <thread>

#include "tests/entries.h"

namespace tidepool {

inline std::atomic<int64_t> live_blocks{0}, live_bytes{0};

struct Footprint {
  int64_t blocks = 0, bytes = 0;  // of operator new
  size_t files = 0, threads = 0, mappings = 0;
  size_t mapped_kib = 0, resident_kib = 0;

  static Footprint now() {
    Footprint all;
    all.files = entries("/proc/self/fd");
    all.threads = entries("/proc/self/task");
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++all.mappings;
    std::ifstream statm("/proc/self/statm");
    size_t mapped = 0, resident = 0;
    statm >> mapped >> resident;
    all.mapped_kib = mapped * 4;
    all.resident_kib = resident * 4;
    all.blocks = live_blocks.load();
    all.bytes = live_bytes.load();
    return all;
  }
  /// What must not grow at all.
  bool within(const Footprint& other) const {
    return blocks <= other.blocks && files <= other.files && threads <= other.threads &&
           mappings <= other.mappings;
  }
  /// Of each the larger.
  Footprint most(const Footprint& other) const {
    return {std::max(blocks, other.blocks),
            std::max(bytes, other.bytes),
            std::max(files, other.files),
            std::max(threads, other.threads),
            std::max(mappings, other.mappings),
            std::max(mapped_kib, other.mapped_kib),
            std::max(resident_kib, other.resident_kib)};
  }
  /// Now, once what other threads let go of asynchronously is gone (a server learns of a closed
  /// connection by itself): as soon as it is within `limit`, or after ten seconds as it is then.
  static Footprint settled(const Footprint& limit) {
    Footprint found = now();
    for (int wait = 0; wait < 10'000 && !found.within(limit); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      found = now();
    }
    return found;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Footprint& all) {
  return out << all.blocks << " blocks of " << all.bytes << " bytes, " << all.files << " files, "
             << all.threads << " threads, " << all.mappings << " mappings of " << all.mapped_kib
             << " KiB, resident " << all.resident_kib << " KiB";
}

}  // namespace tidepool

namespace {

void* counted(void* memory) {
  if (memory == nullptr) abort();
  tidepool::live_blocks.fetch_add(1, std::memory_order_relaxed);
  tidepool::live_bytes.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)),
                                 std::memory_order_relaxed);
  return memory;
}

void uncounted(void* memory) {
  if (memory == nullptr) return;
  tidepool::live_blocks.fetch_sub(1, std::memory_order_relaxed);
  tidepool::live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)),
                                 std::memory_order_relaxed);
  free(memory);
}

}  // namespace

void* operator new(size_t size) { return counted(malloc(size)); }
void* operator new[](size_t size) { return counted(malloc(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return counted(aligned_alloc(static_cast<size_t>(alignment), size));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return counted(aligned_alloc(static_cast<size_t>(alignment), size));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return counted(malloc(size)); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return counted(malloc(size)); }
void operator delete(void* memory) noexcept { uncounted(memory); }
void operator delete[](void* memory) noexcept { uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { uncounted(memory); }
void operator delete[](void* memory, size_t) noexcept { uncounted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { uncounted(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { uncounted(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { uncounted(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { uncounted(memory); }
