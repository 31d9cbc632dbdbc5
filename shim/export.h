// SPDX-License-Identifier: Apache-2.0
// Marks the functions that the shim interposes. shim/preload.map lists the same names: a symbol
// must be in both to leave the library.
#pragma once

#define TP_EXPORT __attribute__((visibility("default"), used))
