// SPDX-License-Identifier: Apache-2.0
// Invariant checks that are too dear for every build: on hot paths, or of whole structures. The
// debug and sanitizer presets make them, others only compile them. What guards memory and costs
// nothing beside the call that it is in is a TP_CHECK.
#pragma once

#include "runtime/base/check.h"

#ifdef TIDEPOOL_DEBUG_CHECKS
#define TP_DCHECK(condition) TP_CHECK(condition)
#define TP_DCHECK_OP(left, op, right) TP_CHECK_OP(left, op, right)
#else
#define TP_DCHECK(condition) static_cast<void>(true || (condition))
#define TP_DCHECK_OP(left, op, right) static_cast<void>(true || ((left)op(right)))
#endif
