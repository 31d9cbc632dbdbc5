// SPDX-License-Identifier: Apache-2.0
// A program that uses userfaultfd itself: on memory that would be managed it must be able to
// register, and to be told of its own faults.
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

enum { kPages = 64 };
static int faults;

static void* serve(void* argument) {
  const int port = *(int*)argument;
  char* page = (char*)aligned_alloc(kPage, kPage);
  for (int served = 0; served < kPages; ++served) {
    struct pollfd waiting = {port, POLLIN, 0};
    struct uffd_msg message;
    if (poll(&waiting, 1, 10000) != 1 || read(port, &message, sizeof message) != sizeof message)
      break;
    const uint64_t address = message.arg.pagefault.address & ~(uint64_t)(kPage - 1);
    fill(page, kPage, 77);
    struct uffdio_copy copy = {.dst = address, .src = (uint64_t)(uintptr_t)page, .len = kPage};
    EXPECT(ioctl(port, UFFDIO_COPY, &copy) == 0);
    ++faults;
  }
  free(page);
  return NULL;
}

int main(void) {
  int port = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  struct uffdio_api api = {.api = UFFD_API};
  EXPECT(port >= 0 && ioctl(port, UFFDIO_API, &api) == 0);
  const size_t size = (size_t)kPages * kPage;
  crowd();
  char* lazy = mapPlain(size);
  struct uffdio_register range = {.range = {(uint64_t)(uintptr_t)lazy, size},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
  EXPECT(ioctl(port, UFFDIO_REGISTER, &range) == 0);
  if (failures()) return done("userfaultfd_own");
  pthread_t server;
  EXPECT(pthread_create(&server, NULL, serve, &port) == 0);
  for (int i = 0; i < kPages; ++i) EXPECT(wrongWords(lazy + (size_t)i * kPage, kPage, 77) == 0);
  EXPECT(pthread_join(server, NULL) == 0);
  printf("%d faults\n", faults);
  crowd();
  tell("lazy", lazy, size);
  return done("userfaultfd_own");
}
