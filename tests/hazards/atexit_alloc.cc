// SPDX-License-Identifier: Apache-2.0
// Constructors and destructors of static and thread-local objects, and atexit handlers, that
// allocate and touch far data; operators new of every kind.
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/hazards/hazard.h"

namespace {

struct Holder {
  std::vector<char> bytes = std::vector<char>(MIB);
  Holder() { fill(bytes.data(), MIB, 11); }
  ~Holder() {
    std::string text(200000, 'd');
    printf("holder: %zu wrong, %zu\n", wrongWords(bytes.data(), MIB, 11), text.size());
  }
};
Holder global;
thread_local Holder per_thread;

struct alignas(4096) Page {
  char bytes[3 * kPage];
};

void atExit() {
  std::unique_ptr<Page> page(new Page);
  fill(page->bytes, sizeof page->bytes, 3);
  crowd();
  printf("atexit: %zu wrong, aligned %d\n", wrongWords(page->bytes, sizeof page->bytes, 3),
         reinterpret_cast<uintptr_t>(page.get()) % 4096 == 0);
}

}  // namespace

int main() {
  atexit(atExit);
  crowd();
  std::thread([] { EXPECT(wrongWords(per_thread.bytes.data(), MIB, 11) == 0); }).join();
  EXPECT(wrongWords(per_thread.bytes.data(), MIB, 11) == 0);
  std::vector<Page*> pages;
  for (int i = 0; i < 300; ++i) {
    pages.push_back(i % 2 ? new Page : new (std::nothrow) Page);
    fill(pages.back()->bytes, sizeof(Page), static_cast<uint64_t>(i));
  }
  crowd();
  for (size_t i = 0; i < pages.size(); ++i)
    EXPECT(wrongWords(pages[i]->bytes, sizeof(Page), i) == 0);
  for (Page* page : pages) delete page;
  try {
    std::vector<char> never(SIZE_MAX / 4);
  } catch (const std::bad_alloc&) {
    printf("bad_alloc\n");
  } catch (const std::length_error&) {
    printf("length_error\n");
  }
  EXPECT(new (std::nothrow) char[SIZE_MAX / 4] == nullptr);
  std::unique_ptr<Page[]> array(new Page[16]);
  tell("data", global.bytes.data(), MIB);
  return done("atexit_alloc");
}
