/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The C API of Tidepool: heaps in memory that spans local DRAM and far tiers, and (in tables.h)
 * embedding tables.
 *
 * A program opens a context, makes heaps in it, and allocates from them. What is hot stays in local
 * memory, the rest moves to far tiers, within one budget for the whole process. Under `tidepool
 * run` that is the run's budget, and heaps share it with malloc() and mmap().
 *
 * Conventions
 * - Functions that can fail return a tidepool_status, or a pointer that is NULL if they failed.
 *   What went wrong is then said by tidepool_error_status() and tidepool_error_text(), of the
 *   calling thread. A call that fails has changed nothing.
 * - Sizes are bytes, times are nanoseconds.
 * - All functions may be called by any thread at any time, unless they say otherwise; no two of
 * them on an object that one of them frees. None may be called by a signal handler.
 * - Handles are checked: NULL is TIDEPOOL_INVALID_ARGUMENT, a closed context or a destroyed heap
 *   TIDEPOOL_CLOSED (until a few thousand others have been made since).
 * - A structure that may grow begins with struct_size, which the caller sets to its sizeof. So a
 *   program goes on working with a newer library.
 * - fork(): parent and child each go on with their own copy of all heaps.
 */
#ifndef TIDEPOOL_TIDEPOOL_H
#define TIDEPOOL_TIDEPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TIDEPOOL_API __attribute__((visibility("default")))
#else
#define TIDEPOOL_API
#endif

/** Version of this header: what was added since is in CHANGELOG.md. */
#define TIDEPOOL_VERSION_MAJOR 0
#define TIDEPOOL_VERSION_MINOR 1

/* ---- Results --------------------------------------------------------------------------------- */

/** How a call ended. The numbers are stable; new ones may be added. */
typedef enum tidepool_status {
  TIDEPOOL_OK = 0,
  TIDEPOOL_INVALID_ARGUMENT = 1, /**< an argument that can never be right */
  TIDEPOOL_NOT_FOUND = 2,        /**< no tier, option or object of that name */
  TIDEPOOL_NO_MEMORY = 3,        /**< the operating system refuses memory or address space */
  TIDEPOOL_NO_SPACE = 4,         /**< the budget, a tier or a buffer is too small */
  TIDEPOOL_PERMISSION = 5,       /**< userfaultfd or a device may not be used */
  TIDEPOOL_UNSUPPORTED = 6,      /**< this kernel, device or version cannot do it */
  TIDEPOOL_UNREACHABLE = 7,      /**< a memory server or the host's agent does not answer */
  TIDEPOOL_STALE_EPOCH = 8,      /**< a region was given to somebody else */
  TIDEPOOL_CONFLICT = 9,         /**< it contradicts what is there already */
  TIDEPOOL_TIMED_OUT = 10,
  TIDEPOOL_CORRUPT = 11, /**< malformed input */
  TIDEPOOL_LOST = 12,    /**< data in far memory that is gone */
  TIDEPOOL_IO = 13,
  TIDEPOOL_INTERNAL = 14, /**< a bug of Tidepool's: please report it */
  TIDEPOOL_REFUSED = 15,
  TIDEPOOL_CLOSED = 16 /**< the handle's object is gone */
} tidepool_status;

/** A short lower-case name such as "no-space"; "unknown" for numbers that are none. Never NULL;
 *  static. */
TIDEPOOL_API const char* tidepool_status_name(tidepool_status status);

/** How the calling thread's last call ended that failed; TIDEPOOL_OK if none has. A call that
 *  succeeds does not change it. */
TIDEPOOL_API tidepool_status tidepool_error_status(void);

/** One line on that failure: what failed, on which object, what to do next. Empty if none has.
 *  Never NULL; valid until the thread's next failure. */
TIDEPOOL_API const char* tidepool_error_text(void);

/** The version of the library that runs, such as "0.1.0". Static. */
TIDEPOOL_API const char* tidepool_version(void);

/* ---- Options --------------------------------------------------------------------------------- */

/** What a context is opened with. Used by one thread at a time. */
typedef struct tidepool_options tidepool_options;

/**
 * Makes options from a text as TIDEPOOL_CONF holds one: "key:value" pairs with commas between them,
 * such as "dram:2G,far:cxl:4G,far:remote:10.0.0.7:7777". docs/tuning.md has the list of keys.
 *
 * @param conf  the text; NULL or "" for the defaults: no budget, no far tier.
 * @param out   where the options go; the caller frees them with tidepool_options_free().
 * Errors: INVALID_ARGUMENT for a bad value, NOT_FOUND for an unknown key.
 */
TIDEPOOL_API tidepool_status tidepool_options_create(const char* conf, tidepool_options** out);

/** Sets one option, as its pair in a text would. `far` adds a tier. Errors: as above; the options
 *  are then as they were. */
TIDEPOOL_API tidepool_status tidepool_options_set(tidepool_options* options, const char* key,
                                                  const char* value);

/** NULL is allowed. */
TIDEPOOL_API void tidepool_options_free(tidepool_options* options);

/* ---- Contexts -------------------------------------------------------------------------------- */

/** The right to use Tidepool's memory. All contexts of a process share one managed space and one
 *  budget. */
typedef struct tidepool_context tidepool_context;

/**
 * Opens a context. Nothing is started and no memory is taken before the first heap or table.
 *
 * Under `tidepool run` the run's space, tiers and budget are used, and `options` is not looked at:
 * the user who runs the program has said what it may have.
 *
 * @param options  copied. NULL: as the process's other contexts; if there are none, as
 * TIDEPOOL_CONF in the environment says. Errors: CONFLICT if another context of the process has
 * other options; UNSUPPORTED if the library of `tidepool run` is of another version;
 * INVALID_ARGUMENT for a bad TIDEPOOL_CONF; NO_SPACE if 64 contexts are open.
 */
TIDEPOOL_API tidepool_status tidepool_open(const tidepool_options* options, tidepool_context** out);

/**
 * Closes it; the last one to be closed ends the threads and gives back the far memory that were
 * started for it. Errors: CONFLICT while heaps, tables or completions of it are there: it is then
 * as it was.
 */
TIDEPOOL_API tidepool_status tidepool_close(tidepool_context* context);

/** Where a context's managed memory comes from. */
typedef enum tidepool_origin {
  TIDEPOOL_ORIGIN_NONE = 0, /**< not started: nothing has needed any yet */
  TIDEPOOL_ORIGIN_OWN = 1,  /**< started by this library */
  TIDEPOOL_ORIGIN_RUN = 2   /**< that of `tidepool run` */
} tidepool_origin;

typedef struct tidepool_context_info {
  size_t struct_size;
  int32_t origin;         /**< a tidepool_origin */
  uint32_t far_tiers;     /**< given in the options; numbered from 1 */
  uint64_t budget_bytes;  /**< of local memory; 0: none */
  uint64_t charged_bytes; /**< held outside managed memory: heaps pinned to local memory, tables */
  uint64_t users;         /**< heaps, tables and completions of this context */
} tidepool_context_info;

/** Fills in as much of `out` as its struct_size says. Errors: INVALID_ARGUMENT if that is smaller
 *  than struct_size itself. */
TIDEPOOL_API tidepool_status tidepool_context_get_info(tidepool_context* context,
                                                       tidepool_context_info* out);

/**
 * Statistics of the process's managed memory as JSON, the object that `tidepool stat --json` prints
 * (docs/cli-reference.md). Before memory is started all counts are 0.
 *
 * @param buffer    gets the text with a NUL at its end; may be NULL if capacity is 0.
 * @param capacity  bytes at `buffer`; 65536 always suffice.
 * @param needed    if not NULL: how many bytes the text takes, with the NUL.
 * Errors: NO_SPACE if it does not fit; `buffer` is then unchanged. UNSUPPORTED if the statistics of
 * `tidepool run` are of another version.
 */
TIDEPOOL_API tidepool_status tidepool_stats_json(tidepool_context* context, char* buffer,
                                                 size_t capacity, size_t* needed);

/* ---- Heaps ----------------------------------------------------------------------------------- */

typedef struct tidepool_heap tidepool_heap;

/** Where a heap's memory is to be. */
typedef enum tidepool_policy {
  /** Hot pages in local memory, the rest in whatever far tier has room. */
  TIDEPOOL_TIERED = 0,
  /**
   * In one tier. "local": ordinary memory, charged to the budget in steps of 2 MiB whether it is
   * touched or not; it never moves, and allocation fails where the budget ends. A direct tier (cxl,
   * dax): used in place. A fetch tier (remote): pages are local while they are in use, leave before
   * all others, and go there. A far tier that is full is as if the heap were tiered.
   */
  TIDEPOOL_PINNED = 1,
  /** Pieces of 2 MiB in turn over tiers, each as often as its weight says. */
  TIDEPOOL_INTERLEAVED = 2
} tidepool_policy;

/** A tier's part of an interleaved heap. */
typedef struct tidepool_share {
  const char* tier; /**< as in tidepool_heap_params */
  uint32_t weight;  /**< from 1 on; at most 1024 in all */
} tidepool_share;

typedef struct tidepool_heap_params {
  size_t struct_size;
  int32_t policy; /**< a tidepool_policy */
  uint32_t shares_count;
  /** TIDEPOOL_PINNED: "local", the number of a far tier (the first is "1"), its name in the
   *  statistics ("remote:10.0.0.7:7777"), or its kind ("cxl") if it is the only one of that. */
  const char* tier;
  const tidepool_share* shares; /**< TIDEPOOL_INTERLEAVED */
} tidepool_heap_params;

/** Parameters of a tiered heap, to begin with. */
#define TIDEPOOL_HEAP_PARAMS_INIT \
  { sizeof(tidepool_heap_params), TIDEPOOL_TIERED, 0, NULL, NULL }

/**
 * Makes a heap. The first that is not pinned to local memory starts the runtime, which connects to
 * the far tiers: that may take seconds.
 *
 * @param params  copied. NULL: a tiered heap.
 * Errors: INVALID_ARGUMENT, NOT_FOUND for a tier that is not there, NO_SPACE if 4095 heaps are
 * there or 1000 arenas, and when memory is started for it: PERMISSION or UNSUPPORTED without
 * userfaultfd, UNREACHABLE, NOT_FOUND or NO_SPACE for a far tier.
 */
TIDEPOOL_API tidepool_status tidepool_heap_create(tidepool_context* context,
                                                  const tidepool_heap_params* params,
                                                  tidepool_heap** out);

/** Frees all that is in the heap, and the heap. No other thread uses it then, or any block of it.
 */
TIDEPOOL_API tidepool_status tidepool_heap_destroy(tidepool_heap* heap);

/**
 * Gives back what the heap holds of free memory, but for what threads keep at hand. Without it free
 * memory goes back about a second after it became free, as the heap is used; of a heap that is not
 * used any more it is moved to far memory like anything that is cold. Blocks of 8 MiB and more are
 * given back when they are freed.
 */
TIDEPOOL_API tidepool_status tidepool_heap_trim(tidepool_heap* heap);

/**
 * Allocates. Blocks are aligned to 16 bytes, or as asked. A size of 0 gives a block that may be
 * freed. The caller frees the block, or destroys the heap. Costs what malloc() costs.
 *
 * Errors (NULL): NO_MEMORY, NO_SPACE where a budget or tier ends that the heap is pinned to;
 * INVALID_ARGUMENT for an alignment that is no power of two or above 1 GiB, and for a count times
 * size that overflows.
 */
TIDEPOOL_API void* tidepool_alloc(tidepool_heap* heap, size_t size);
/** The block is zero-filled: fresh memory without being touched. */
TIDEPOOL_API void* tidepool_calloc(tidepool_heap* heap, size_t count, size_t size);
/** The size need not be a multiple of the alignment. */
TIDEPOOL_API void* tidepool_aligned_alloc(tidepool_heap* heap, size_t alignment, size_t size);

/**
 * Gives a block another size; it may move, with as much of its contents as fits. NULL as block
 * allocates. A size of 0 leaves the smallest block there is. If it fails the block is as it was.
 * The alignment of tidepool_aligned_alloc() is not kept. Errors (NULL): as tidepool_alloc();
 * INVALID_ARGUMENT if the block is not of this heap.
 */
TIDEPOOL_API void* tidepool_realloc(tidepool_heap* heap, void* block, size_t size);

/**
 * Frees a block of this heap, whichever thread allocated it. NULL is allowed.
 * Errors: INVALID_ARGUMENT if it is not in memory of this heap. (That it begins a block, and was
 * not freed already, is not checked.)
 */
TIDEPOOL_API tidepool_status tidepool_free(tidepool_heap* heap, void* block);

/** Bytes that may be used at the block, at least what was asked for. 0 for NULL, and (with an
 * error) for what is not of this heap. */
TIDEPOOL_API size_t tidepool_usable_size(tidepool_heap* heap, const void* block);

#define TIDEPOOL_MAX_TIERS 16

typedef struct tidepool_heap_stats {
  size_t struct_size;
  uint64_t allocated_bytes; /**< in blocks that are not freed, as tidepool_usable_size() counts */
  uint64_t allocations; /**< blocks allocated since the heap was made; a realloc counts as both */
  uint64_t frees;
  uint64_t reserved_bytes; /**< address space taken */
  uint64_t local_bytes;    /**< in local memory; pages on their way out included */
  uint64_t lost_bytes;
  /** By tier number; 0 stays 0. Sums of pages: more than allocated_bytes where blocks are freed, or
   *  smaller than a page. */
  uint64_t far_bytes[TIDEPOOL_MAX_TIERS];
} tidepool_heap_stats;

/** Fills in as much of `out` as its struct_size says. Counts of threads that work meanwhile may be
 *  behind. Takes about a millisecond for each 4 GiB that the heap holds. */
TIDEPOOL_API tidepool_status tidepool_heap_get_stats(tidepool_heap* heap, tidepool_heap_stats* out);

/* ---- Hints, prefetch, evict -------------------------------------------------------------------
 */

/** What the program knows of a range. Hints never change what it reads, and may be ignored. */
typedef enum tidepool_hint {
  TIDEPOOL_HINT_HOT = 0,        /**< often used from now on. Today as WILL_NEED */
  TIDEPOOL_HINT_COLD = 1,       /**< not soon used: first to leave when something has to. Today: for
                                     pages that go to fetch tiers */
  TIDEPOOL_HINT_WILL_NEED = 2,  /**< soon used: what fetch tiers hold of it is brought in as far as
                                     there is room; nothing is moved out for it */
  TIDEPOOL_HINT_SEQUENTIAL = 3, /**< will be scanned. Today ignored: scans are recognised */
  TIDEPOOL_HINT_READ_MOSTLY = 4 /**< hardly written. Today ignored: unchanged pages are found, and
                                     not written back */
} tidepool_hint;

/**
 * Gives a hint on [address, address + size): memory of heaps of this process or, under `tidepool
 * run`, any that is managed. Costs a look at its pages. Memory that is pinned to local has no use
 * for hints, and takes them.
 * Errors: INVALID_ARGUMENT for another hint, and if any of it is not memory of Tidepool's.
 */
TIDEPOOL_API tidepool_status tidepool_advise(tidepool_context* context, void* address, size_t size,
                                             tidepool_hint hint);

/** What can be waited for. It belongs to its context, which cannot be closed before it is freed. */
typedef struct tidepool_completion tidepool_completion;

/**
 * Brings all pages that a range has in far memory to where they can be used without a fault. Pages
 * of direct tiers are used in place and stay. Nothing is moved out for it, so that it is not
 * completed while there is too little room in local memory.
 *
 * @param out  gets what can be waited for, to be freed by the caller; NULL if nobody will wait.
 * Errors: as tidepool_advise().
 */
TIDEPOOL_API tidepool_status tidepool_prefetch(tidepool_context* context, void* address,
                                               size_t size, tidepool_completion** out);

/**
 * Moves all whole pages of a range out of local memory. A page that goes to a fetch tier counts as
 * evicted when it cannot be touched without a fault: its local memory may be given up a little
 * later, as room is needed. Pages that cannot leave (no far tier has room, pinned by a device)
 * stay. Memory pinned to "local" by its heap stays as well: complete at once for whole heaps, never
 * for the local parts of an interleaved one.
 */
TIDEPOOL_API tidepool_status tidepool_evict(tidepool_context* context, void* address, size_t size,
                                            tidepool_completion** out);

/**
 * Whether it is complete: OK, or TIMED_OUT if it is not yet.
 * @param total, done  if not NULL: how many pages of the range hold anything, and how many of these
 *                     are where they were wanted.
 * Errors: LOST if pages of the range are gone with their far memory.
 */
TIDEPOOL_API tidepool_status tidepool_completion_test(tidepool_completion* completion,
                                                      uint64_t* total, uint64_t* done);

/**
 * Waits until it is complete. Looks at intervals of 50 microseconds, growing to 2 milliseconds, and
 * asks again for pages that were left out; uses no processor time in between.
 * @param timeout_ns  nanoseconds; 0 as tidepool_completion_test(), UINT64_MAX for ever.
 * Errors: TIMED_OUT, LOST.
 */
TIDEPOOL_API tidepool_status tidepool_completion_wait(tidepool_completion* completion,
                                                      uint64_t timeout_ns);

/** Ends the watch, not the move. NULL is allowed. */
TIDEPOOL_API void tidepool_completion_free(tidepool_completion* completion);

#ifdef __cplusplus
}
#endif

#include "tables.h"

#endif /* TIDEPOOL_TIDEPOOL_H */
