// SPDX-License-Identifier: Apache-2.0
// A program linked with mimalloc (see CMakeLists.txt).
#include "tests/hazards/linked_allocator.h"

int main(void) { return useLinkedAllocator(); }
