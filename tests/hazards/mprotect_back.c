// SPDX-License-Identifier: Apache-2.0
// mprotect away and back: contents stay, through PROT_READ, PROT_NONE and mixtures by the page.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  const int rights[] = {PROT_READ, PROT_NONE, PROT_READ, kRw};
  for (int i = 0; i < 4; ++i) {
    EXPECT(mprotect(data, size, rights[i]) == 0);
    if (rights[i] != PROT_NONE) EXPECT(wrongWords(data, size, 1) == 0);
    crowd();
  }
  for (size_t at = 0; at < size; at += 8 * kPage)
    EXPECT(mprotect(data + at, kPage, PROT_NONE) == 0);
  crowd();
  for (size_t at = 0; at < size; at += 8 * kPage) {
    EXPECT(wrongFrom(data + at + kPage, 7 * kPage, 1, (at + kPage) / 8) == 0);
  }
  EXPECT(mprotect(data, size, kRw) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  fill(data, size, 2);
  crowd();
  tell("data", data, size);
  return done("mprotect_back");
}
