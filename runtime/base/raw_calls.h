// SPDX-License-Identifier: Apache-2.0
// System calls that no symbol answers. A library that is preloaded beside ours may define open(),
// close(), socket(), even syscall(), and hold a lock of its own in them, also while its fork
// handler runs: what Tidepool does for itself, in its fork handlers above all, must not go through
// there. Nor is any of these a cancellation point. Results and errno are libc's: -1, and errno says
// why. Thread-safe, no allocation. Sanitizers have to see what libc is asked, so under them it is.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tidepool::raw {

/// As an argument of a system call: numbers widened as their sign says, pointers as addresses.
template <typename T>
long callWord(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<long>(reinterpret_cast<uintptr_t>(value));
  } else if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else {
    return static_cast<long>(value);
  }
}

/// The call itself. Returns what the kernel does: -errno when it fails; errno is left alone.
inline long kernelWords(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result = number;
  register long fourth asm("r10") = d;
  register long fifth asm("r8") = e;
  register long sixth asm("r9") = f;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  return result;
#else
  const long result = ::syscall(number, a, b, c, d, e, f);
  return result == -1 ? -errno : result;
#endif
}

/// Any call by its number, with up to six arguments, past every symbol in all builds.
template <typename... Arguments>
long call(long number, Arguments... arguments) {
  static_assert(sizeof...(Arguments) <= 6);
  long words[6] = {};
  [[maybe_unused]] size_t used = 0;
  ((words[used++] = callWord(arguments)), ...);
  const long result =
      kernelWords(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  if (result < 0 && result >= -4095) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

// Memory: sanitizers learn of it elsewhere (Mapping), or need not.
inline void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(call(SYS_mmap, address, size, protection, flags, fd, offset));
}
inline int munmap(void* address, size_t size) {
  return static_cast<int>(call(SYS_munmap, address, size));
}
inline void* mremap(void* address, size_t old_size, size_t new_size, int flags, void* target) {
  return reinterpret_cast<void*>(call(SYS_mremap, address, old_size, new_size, flags, target));
}
inline int mprotect(void* address, size_t size, int protection) {
  return static_cast<int>(call(SYS_mprotect, address, size, protection));
}
inline int madvise(void* address, size_t size, int advice) {
  return static_cast<int>(call(SYS_madvise, address, size, advice));
}

#ifdef TIDEPOOL_SANITIZED
using ::bind;
using ::close;
using ::connect;
using ::eventfd;
using ::fallocate;
using ::fstat;
using ::ftruncate;
using ::getpeername;
using ::getpid;
using ::getsockname;
using ::getsockopt;
using ::ioctl;
using ::listen;
using ::memfd_create;
using ::openat;
using ::poll;
using ::ppoll;
using ::pread;
using ::read;
using ::readlinkat;
using ::recvmsg;
using ::send;
using ::sendmsg;
using ::setsockopt;
using ::socket;
using ::write;
template <typename T = int>
int fcntl(int fd, int command, T argument = 0) {
  return ::fcntl(fd, command, argument);
}
inline int prlimit(int which, const rlimit* wanted, rlimit* found) {
  return ::prlimit(0, static_cast<__rlimit_resource>(which), wanted, found);
}
#else
inline int openat(int folder, const char* path, int flags, mode_t mode = 0) {
  return static_cast<int>(call(SYS_openat, folder, path, flags, mode));
}
inline int close(int fd) { return static_cast<int>(call(SYS_close, fd)); }
inline ssize_t read(int fd, void* to, size_t size) { return call(SYS_read, fd, to, size); }
inline ssize_t write(int fd, const void* from, size_t size) {
  return call(SYS_write, fd, from, size);
}
inline ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  return call(SYS_pread64, fd, to, size, offset);
}
inline int ioctl(int fd, unsigned long request, auto argument) {
  return static_cast<int>(call(SYS_ioctl, fd, request, argument));
}
template <typename T = int>
int fcntl(int fd, int command, T argument = 0) {
  return static_cast<int>(call(SYS_fcntl, fd, command, argument));
}
inline int fstat(int fd, struct stat* out) { return static_cast<int>(call(SYS_fstat, fd, out)); }
inline int ftruncate(int fd, off_t size) { return static_cast<int>(call(SYS_ftruncate, fd, size)); }
inline int fallocate(int fd, int mode, off_t offset, off_t size) {
  return static_cast<int>(call(SYS_fallocate, fd, mode, offset, size));
}
inline int memfd_create(const char* name, unsigned flags) {
  return static_cast<int>(call(SYS_memfd_create, name, flags));
}
inline ssize_t readlinkat(int folder, const char* path, char* out, size_t size) {
  return call(SYS_readlinkat, folder, path, out, size);
}
inline int eventfd(unsigned count, int flags) {
  return static_cast<int>(call(SYS_eventfd2, count, flags));
}
inline pid_t getpid() { return static_cast<pid_t>(call(SYS_getpid)); }
/// `until` is as ppoll(2) has it; null: for ever.
inline int ppoll(pollfd* waits, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  timespec left{};
  if (timeout != nullptr) left = *timeout;  // the kernel writes the rest of it there
  return static_cast<int>(
      call(SYS_ppoll, waits, count, timeout == nullptr ? nullptr : &left, mask, size_t{_NSIG / 8}));
}
inline int poll(pollfd* waits, nfds_t count, int milliseconds) {
  return static_cast<int>(call(SYS_poll, waits, count, milliseconds));
}
inline int socket(int domain, int type, int protocol) {
  return static_cast<int>(call(SYS_socket, domain, type, protocol));
}
inline int connect(int fd, const sockaddr* address, socklen_t size) {
  return static_cast<int>(call(SYS_connect, fd, address, size));
}
inline int bind(int fd, const sockaddr* address, socklen_t size) {
  return static_cast<int>(call(SYS_bind, fd, address, size));
}
inline int listen(int fd, int backlog) { return static_cast<int>(call(SYS_listen, fd, backlog)); }
inline int getsockname(int fd, sockaddr* address, socklen_t* size) {
  return static_cast<int>(call(SYS_getsockname, fd, address, size));
}
inline int getpeername(int fd, sockaddr* address, socklen_t* size) {
  return static_cast<int>(call(SYS_getpeername, fd, address, size));
}
inline int setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  return static_cast<int>(call(SYS_setsockopt, fd, level, name, value, size));
}
inline int getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  return static_cast<int>(call(SYS_getsockopt, fd, level, name, value, size));
}
inline ssize_t send(int fd, const void* from, size_t size, int flags) {
  return call(SYS_sendto, fd, from, size, flags, nullptr, 0);
}
inline ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return call(SYS_sendmsg, fd, message, flags);
}
inline ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return call(SYS_recvmsg, fd, message, flags);
}
/// Of this process.
inline int prlimit(int which, const rlimit* wanted, rlimit* found) {
  return static_cast<int>(call(SYS_prlimit64, 0, which, wanted, found));
}
#endif

/// Changes which signals the calling thread takes; bit N - 1 is signal N. Never block all: libc
/// wants two of its own at any time.
inline int changeMask(int how, const uint64_t* set, uint64_t* before) {
  return static_cast<int>(call(SYS_rt_sigprocmask, how, set, before, sizeof *set));
}

/// A path from the working directory or the root.
inline int open(const char* path, int flags, mode_t mode = 0) {
  return raw::openat(AT_FDCWD, path, flags, mode);
}

}  // namespace tidepool::raw
