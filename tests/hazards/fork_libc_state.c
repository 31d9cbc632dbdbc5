// SPDX-License-Identifier: Apache-2.0
// Whatever libc keeps in allocated memory may be far when a process is forked and when threads
// start in the child: locales, converters, names, streams, handlers, thread-local data. A child of
// a child uses all of it.
#include <dlfcn.h>
#include <iconv.h>
#include <langinfo.h>
#include <libintl.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <pwd.h>
#include <regex.h>
#include <search.h>
#include <stdio.h>
#include <time.h>
#include <wchar.h>

#include "tests/hazards/hazard.h"

enum { kKeys = 300, kHandlers = 40, kStreams = 8 };

static locale_t other_locale;
static iconv_t converter;
static regex_t pattern;
static pthread_key_t keys[kKeys];
static FILE* streams[kStreams];
static void *tree, *library;
static int handled;

static void onExit(int status, void* argument) {
  (void)status;
  handled += argument != NULL;
}
static int compareNames(const void* a, const void* b) { return strcmp(a, b); }

static void makeState(void) {
  EXPECT(setlocale(LC_ALL, "C.UTF-8") != NULL);
  other_locale = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
  EXPECT(other_locale != NULL);
  bindtextdomain("hazard", "/nowhere");
  bind_textdomain_codeset("hazard", "UTF-8");
  textdomain("hazard");
  converter = iconv_open("UTF-16LE", "UTF-8");
  EXPECT(converter != (iconv_t)-1);
  EXPECT(getpwnam("root") != NULL && getpwuid(0) != NULL);
  struct addrinfo* found = NULL;
  EXPECT(getaddrinfo("127.0.0.1", "80", NULL, &found) == 0);
  freeaddrinfo(found);
  EXPECT(regcomp(&pattern, "^(a|b)*c[[:alpha:]]+$", REG_EXTENDED) == 0);
  for (int i = 0; i < kKeys; ++i) {
    EXPECT(pthread_key_create(&keys[i], NULL) == 0);
    pthread_setspecific(keys[i], &keys[i]);
  }
  for (int i = 0; i < kStreams; ++i) {
    streams[i] = tmpfile();
    EXPECT(streams[i] != NULL && fprintf(streams[i], "%d", i) > 0);
  }
  for (int i = 0; i < kHandlers; ++i) on_exit(onExit, &handled);
  static const char* const kNames[] = {"one", "two", "three"};
  for (int i = 0; i < 3; ++i) tsearch(kNames[i], &tree, compareNames);
  setenv("TZ", "Europe/Berlin", 1);
  tzset();
  for (int i = 0; i < 100; ++i) {
    char name[32];
    snprintf(name, sizeof name, "HAZARD_%d", i);
    setenv(name, "value", 1);
  }
  library = dlopen("libm.so.6", RTLD_NOW);
  EXPECT(library != NULL);
}

static void useState(void) {
  EXPECT(strcmp(nl_langinfo(CODESET), "UTF-8") == 0);
  EXPECT(strcmp(nl_langinfo_l(CODESET, other_locale), "UTF-8") == 0);
  wchar_t wide[8];
  EXPECT(mbstowcs(wide, "\xc3\xa4\xe2\x82\xac", 8) == 2 && wide[1] == 0x20ac);
  EXPECT(strcmp(gettext("not translated"), "not translated") == 0);
  char in[] = "\xe2\x82\xac", out[8];
  char *from = in, *to = out;
  size_t from_left = 3, to_left = sizeof out;
  EXPECT(iconv(converter, &from, &from_left, &to, &to_left) == 0 && to == out + 2);
  const struct passwd* root = getpwuid(0);
  EXPECT(root != NULL && strcmp(root->pw_name, "root") == 0);
  struct addrinfo* found = NULL;
  EXPECT(getaddrinfo("127.0.0.1", "80", NULL, &found) == 0);
  freeaddrinfo(found);
  EXPECT(regexec(&pattern, "ababcde", 0, NULL, 0) == 0);
  EXPECT(tfind("two", &tree, compareNames) != NULL);
  const time_t summer = 1750000000;
  EXPECT(localtime(&summer)->tm_isdst == 1);
  EXPECT(strcmp(getenv("HAZARD_77"), "value") == 0);
  EXPECT(dlsym(library, "cos") != NULL);
}

static __thread char own[3000] = "untouched";

static void* inThread(void* argument) {
  uselocale(other_locale);
  EXPECT(strcmp(own, "untouched") == 0 && pthread_getspecific(keys[kKeys - 1]) == NULL);
  pthread_setspecific(keys[kKeys - 1], argument);
  useState();
  uselocale(LC_GLOBAL_LOCALE);
  return argument;
}

static void useAll(void) {
  useState();
  for (int i = 0; i < kKeys; ++i) EXPECT(pthread_getspecific(keys[i]) == &keys[i]);
  for (int i = 0; i < kStreams; ++i) {
    EXPECT(fprintf(streams[i], "+") == 1 && ftell(streams[i]) >= 2);
  }
  for (int i = 0; i < 3; ++i) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, inThread, keys) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
  }
}

static void generation(int depth) {
  char name[32];
  snprintf(name, sizeof name, "generation %d", depth);
  const size_t size = 4 * MIB;
  char* data = farData(size, 7 + (uint64_t)depth);
  crowd();
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    EXPECT(wrongWords(data, size, 7 + (uint64_t)depth) == 0);
    useAll();
    crowd();
    if (depth < 3) generation(depth + 1);
    exit(failures() == 0 ? 0 : 1);
  }
  ended(name, child);
  useAll();
  EXPECT(wrongWords(data, size, 7 + (uint64_t)depth) == 0);
}

int main(void) {
  makeState();
  crowd();
  useAll();
  generation(0);
  return done("fork_libc_state");
}
