// SPDX-License-Identifier: Apache-2.0
// recv, recvmsg with descriptors (SCM_RIGHTS), readv and preadv into far memory, scattered.
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/hazards/hazard.h"

static const size_t kSize = 4 * MIB;

static void* feed(void* argument) {
  const int to = *(int*)argument;
  char* data = farBlock(kSize, 1);
  for (size_t at = 0; at < kSize;) at += (size_t)send(to, data + at, kSize - at, 0);
  char page[8] = "rights!";
  struct iovec part = {page, sizeof page};
  union {
    char space[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
  } control = {{0}};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof(int));
  const int file = fileOf(kSize, 6);
  memcpy(CMSG_DATA(&control.header), &file, sizeof file);
  EXPECT(sendmsg(to, &message, 0) == sizeof page);
  free(data);
  return NULL;
}

int main(void) {
  char* data = farData(2 * kSize, 9);
  int ends[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  pthread_t feeder;
  EXPECT(pthread_create(&feeder, NULL, feed, &ends[1]) == 0);
  for (size_t at = 0; at < kSize;) {
    const ssize_t got =
        at % 3 ? recv(ends[0], data + at, kSize - at, 0)
               : recv(ends[0], data + at, kSize - at < 100000 ? kSize - at : 100000, MSG_WAITALL);
    EXPECT(got > 0);
    if (got <= 0) break;
    at += (size_t)got;
  }
  pthread_join(feeder, NULL);
  crowd();
  EXPECT(wrongWords(data, kSize, 1) == 0);
  struct msghdr* message =
      (struct msghdr*)(data + kSize);  // the call's own structures are far as well
  memset(message, 0, sizeof *message);
  struct iovec* parts = (struct iovec*)(data + kSize + 8 * kPage);
  parts[0] = (struct iovec){data + kSize + 16 * kPage, 8};
  message->msg_iov = parts;
  message->msg_iovlen = 1;
  message->msg_control = data + kSize + 24 * kPage;
  message->msg_controllen = kPage;
  crowd();
  EXPECT(recvmsg(ends[0], message, 0) == 8);
  printf("%s\n", data + kSize + 16 * kPage);
  int file = -1;
  struct cmsghdr* header = CMSG_FIRSTHDR(message);
  EXPECT(header != NULL);
  if (header != NULL) memcpy(&file, CMSG_DATA(header), sizeof file);
  struct iovec scattered[64];
  for (size_t i = 0; i < 64; ++i)
    scattered[63 - i] = (struct iovec){data + i * kSize / 64, kSize / 64};
  crowd();
  EXPECT(preadv(file, scattered, 64, 0) == (ssize_t)kSize);
  crowd();
  for (size_t i = 0; i < 64; ++i) {
    EXPECT(wrongFrom(data + (63 - i) * kSize / 64, kSize / 64, 6, i * kSize / 64 / 8) == 0);
  }
  EXPECT(lseek(file, 0, SEEK_SET) == 0 && readv(file, scattered, 64) == (ssize_t)kSize);
  tell("data", data, kSize);
  return done("recv_far");
}
