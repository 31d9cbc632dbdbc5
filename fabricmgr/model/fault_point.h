// SPDX-License-Identifier: Apache-2.0
// The places between durable writes and device actions, at which a test can stop or kill the
// process. Always compiled in; without a hook a place costs one load and one compare. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool::fabric {

enum class FaultPoint : uint8_t {
  kBeforeCommit,          // store: a transaction is about to be written
  kAfterCommit,           // store: it is durable, and nobody knows yet
  kGrantIntended,         // assign, apply, grow: the intent is durable
  kGrantDeviceDone,       // one device has granted
  kGrantConcluded,        // the outcome is durable, the caller has no answer yet
  kBeforeAction,          // a device is about to be told to attach or revoke
  kAfterAction,           // it has answered
  kBeforeErase,           // a device is about to be told to scrub
  kErased,                // scrubbed, not verified
  kVerified,              // verified, the evidence is the device's only
  kWorkerIntended,        // an operation's next step: its intent is durable
  kWorkerAnswered,        // all its devices have answered
  kWorkerConcluded,       // the outcome is durable
  kRecoveryLoaded,        // the state is loaded, no device was asked
  kRecoveryCompared,      // every device was compared
  kRecoverySettled,       // one grant that was under way is completed or undone
  kPoolBeforeGrantWrite,  // emulated pool: a grant is about to be written
  kPoolAfterGrantWrite,   // it is durable
  kPoolExtentErased,      // one extent of several is erased
};
inline constexpr int kFaultPoints = 19;

using FaultHook = void (*)(FaultPoint point);

inline std::atomic<FaultHook> fault_hook{nullptr};

inline void faultPoint(FaultPoint point) {
  // Relaxed: set before threads start, or by a test that does not mind when.
  if (const FaultHook hook = fault_hook.load(std::memory_order_relaxed)) hook(point);
}

}  // namespace tidepool::fabric
