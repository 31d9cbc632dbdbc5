// SPDX-License-Identifier: Apache-2.0
// check_store STORE: the independent checker for stores that programs other than tests made. Prints
// what is wrong, a line each; exit 1 if there is something.
#include <cstdio>

#include "tests/fabricmgr/independent_checker.h"

int main(int count, char** words) {
  if (count != 2) return std::fputs("usage: check_store STORE\n", stderr), 2;
  const std::string complaints = tidepool::checker::Checker(words[1]).check();
  std::fputs(complaints.c_str(), stdout);
  return complaints.empty() ? 0 : 1;
}
