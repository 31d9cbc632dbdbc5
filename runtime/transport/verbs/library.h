// SPDX-License-Identifier: Apache-2.0
// rdma-core, loaded when somebody first asks for it: a program that never does neither has nor
// needs it. The functions are its own, by their names; what its headers define inline is used from
// there. Loading is thread-safe; the table is never unloaded.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "runtime/base/result.h"

namespace tidepool::verbs {

// Some of these names are macros in the headers.
// clang-format off
#define TP_VERBS_FUNCTIONS(F)                                                                    \
  F(alloc_pd) F(dealloc_pd) F(dereg_mr) F(create_comp_channel) F(destroy_comp_channel)           \
  F(create_cq) F(destroy_cq) F(get_cq_event) F(ack_cq_events) F(query_device) F(wc_status_str)   \
  F(open_device) F(close_device) F(get_async_event) F(ack_async_event)

#define TP_RDMACM_FUNCTIONS(F)                                                                   \
  F(create_event_channel) F(destroy_event_channel) F(create_id) F(destroy_id) F(bind_addr)       \
  F(resolve_addr) F(resolve_route) F(create_qp) F(destroy_qp) F(connect) F(listen) F(accept)     \
  F(reject) F(disconnect) F(get_cm_event) F(ack_cm_event) F(event_str) F(get_devices)            \
  F(free_devices) F(set_option)
// clang-format on

struct Library {
#define TP_MEMBER(name) decltype(&::ibv_##name) name = nullptr;
  TP_VERBS_FUNCTIONS(TP_MEMBER)
#undef TP_MEMBER
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, size_t length, int access) = nullptr;
  struct {
#define TP_MEMBER(name) decltype(&::rdma_##name) name = nullptr;
    TP_RDMACM_FUNCTIONS(TP_MEMBER)
#undef TP_MEMBER
  } cm;
};

/// Errors: kUnsupported, naming what is missing: a library, a function of it, a device.
Result<const Library*> library();

}  // namespace tidepool::verbs
