// SPDX-License-Identifier: Apache-2.0
// _Fork(), which runs no handlers.
#include "copy_ways.h"

int main(void) { return copyAgainAndAgain("copy_fork", _Fork); }
