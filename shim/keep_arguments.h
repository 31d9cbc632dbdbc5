// SPDX-License-Identifier: Apache-2.0
// A piece of assembler at the entry of a function that passes its own arguments on.
#pragma once

/// Calls `function` (a string), which takes the same arguments, and keeps the registers that they
/// are in. At a function's entry, where the stack is 8 bytes off its alignment; with unwind
/// information.
#define TP_CALL_KEEPING_ARGUMENTS(function)     \
  ".irp register, rdi, rsi, rdx, rcx, r8, r9\n" \
  "  push %\\register\n"                        \
  "  .cfi_adjust_cfa_offset 8\n"                \
  ".endr\n"                                     \
  "  sub $8, %rsp\n"                            \
  "  .cfi_adjust_cfa_offset 8\n"                \
  "  call " function                            \
  "\n"                                          \
  "  add $8, %rsp\n"                            \
  "  .cfi_adjust_cfa_offset -8\n"               \
  ".irp register, r9, r8, rcx, rdx, rsi, rdi\n" \
  "  pop %\\register\n"                         \
  "  .cfi_adjust_cfa_offset -8\n"               \
  ".endr\n"
