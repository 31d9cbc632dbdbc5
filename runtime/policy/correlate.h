#pragma once
#include <cstdlib>
#include <cstdint>
#include <span>
#include <vector>
#include "runtime/base/units.h"
namespace tidepool {
struct Correlator {
  struct E { uint32_t next = UINT32_MAX; uint8_t conf = 0; };
  std::vector<E> t;
  uint32_t last = UINT32_MAX;
  int mode = getenv("CM") ? atoi(getenv("CM")) : 0;
  size_t depth = getenv("CD") ? atoi(getenv("CD")) : 8;
  explicit Correlator(size_t n) : t(n) {}
  void link(uint32_t a, uint32_t b) {
    if (a == UINT32_MAX || a == b) return;
    E& e = t[a];
    if (e.next == b) { if (e.conf < 3) ++e.conf; }
    else if (e.conf > 0) --e.conf;
    else e.next = b;
  }
  size_t onMiss(uint32_t page, uint32_t* out) {
    link(last, page);
    size_t n = 0; uint32_t cur = page;
    while (n < depth) {
      const E& e = t[cur];
      if (e.next == UINT32_MAX || e.next == page) break;
      if (mode == 1 && e.conf == 0) break;
      bool dup = false; for (size_t i = 0; i < n; ++i) dup |= out[i] == e.next;
      if (dup) break;
      out[n++] = e.next; cur = e.next;
    }
    last = mode == 2 ? page : cur;
    return n;
  }
};
}
