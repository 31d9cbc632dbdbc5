// SPDX-License-Identifier: Apache-2.0
// A program that dies with its memory in use, and a look at the core that it leaves: how long the
// file is, how much of it is on the disk, and whether the program's memory is in it. Cores go where
// the machine sends them: to a file of the folder where the program runs, or these tests have
// nothing to look at and say so (alike under all ways to run them).
#pragma once

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/hazards/hazard.h"

/// Whether the kernel writes cores into the folder where a program runs.
static inline int coresComeHere(void) {
  char pattern[256] = "";
  FILE* file = fopen("/proc/sys/kernel/core_pattern", "r");
  EXPECT(file != NULL && fgets(pattern, sizeof pattern, file) != NULL);
  fclose(file);
  return strncmp(pattern, "core", 4) == 0 && strchr(pattern, '/') == NULL;
}

/// The core of the folder, opened and its name taken away; -1 without one.
static inline int takeCore(void) {
  DIR* folder = opendir(".");
  int fd = -1;
  for (struct dirent* entry; fd < 0 && (entry = readdir(folder)) != NULL;) {
    if (strncmp(entry->d_name, "core", 4) != 0) continue;
    fd = open(entry->d_name, O_RDONLY);
    unlink(entry->d_name);
  }
  closedir(folder);
  return fd;
}

/// Runs `body(argument)` in a process whose end leaves a core.
static inline int coreOf(void (*body)(void*), void* argument) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &all) != 0) _exit(99);
    body(argument);
    _exit(98);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  return takeCore();
}

/// How many pages that begin with the words of fill() with this seed are in the file, of `pages`.
static inline size_t pagesIn(int fd, uint64_t seed, size_t pages) {
  size_t found = 0;
  uint64_t page[kPage / 8];
  char* seen = (char*)calloc(1, pages);
  for (ssize_t got; (got = read(fd, page, sizeof page)) == (ssize_t)sizeof page;) {
    // What stands second in a page says which it is.
    const uint64_t index = page[1];
    if (index >= pages || seen[index] || page[0] != seed || page[2] != wordAt(seed, index))
      continue;
    seen[index] = 1;
    ++found;
  }
  free(seen);
  return found;
}

static inline void markPages(char* memory, size_t pages, uint64_t seed) {
  for (size_t i = 0; i < pages; ++i) {
    uint64_t* page = (uint64_t*)(memory + i * kPage);
    for (size_t word = 0; word < kPage / 8; ++word) page[word] = wordAt(seed + i, word);
    page[0] = seed;
    page[1] = i;
    page[2] = wordAt(seed, i);
  }
}
