// SPDX-License-Identifier: Apache-2.0
// UCX (the transport below MPI) changes libc's memory calls to hear when memory that it has
// registered with a device goes away: it must hear of ours, too, and the calls must do their work.
#include <ucm/api/ucm.h>

#include "tests/hazards/hazard.h"

enum { kSize = 8 << 20 };

static char* watched;
static size_t unmapped;  // bytes of it, as UCX was told
static unsigned long others;

static void onUnmapped(ucm_event_type_t type, ucm_event_t* event, void* argument) {
  (void)type;
  (void)argument;
  char* const start = (char*)event->vm_unmapped.address;
  if (start >= watched && start < watched + kSize) {
    unmapped += event->vm_unmapped.size;
  } else {
    ++others;
  }
}

/// A mapping of which most is far, if there is far memory.
static char* make(void) {
  watched = mapPlain(kSize);
  fill(watched, kSize, 5);
  crowd();
  unmapped = 0;
  return watched;
}

int main(void) {
  const ucs_status_t set = ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 1, onUnmapped, NULL);
  EXPECT(set == UCS_OK);
  char* data = make();
  EXPECT(wrongWords(data, kSize, 5) == 0);
  EXPECT(munmap(data, kSize) == 0);
  EXPECT(unmapped == kSize);

  data = make();
  EXPECT(madvise(data + MIB, MIB, MADV_DONTNEED) == 0);
  EXPECT(unmapped == MIB);
  EXPECT(data[MIB] == 0 && data[2 * MIB - 1] == 0);
  EXPECT(munmap(data, kSize) == 0);
  EXPECT(unmapped == MIB + kSize);

  data = make();
  char* const moved = (char*)mremap(data, kSize, 2 * kSize, MREMAP_MAYMOVE);
  EXPECT(moved != MAP_FAILED);
  EXPECT(unmapped == kSize);
  EXPECT(moved[2 * kSize - 1] == 0);
  watched = moved;
  unmapped = 0;
  EXPECT(mmap(moved, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
         moved);
  EXPECT(moved[0] == 0);
  EXPECT(munmap(moved, 2 * kSize) == 0);

  ucm_unset_event_handler(UCM_EVENT_VM_UNMAPPED, onUnmapped, NULL);
  data = make();
  EXPECT(munmap(data, kSize) == 0);
  EXPECT(unmapped == 0);
  return done("ucx_events");
}
