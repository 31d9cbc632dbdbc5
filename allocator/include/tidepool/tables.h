/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The C API's embedding tables: rows of numbers that are looked up, pooled and updated in batches.
 * All rows of a table have their homes in one tier; the hot ones of a far tier are in local memory
 * as well, within the context's budget. Results are the same, bit for bit, whatever the tier, the
 * budget and the number of processors. Included by tidepool.h, whose conventions hold; and
 *
 * - Calls on one table take turns; a call on several tables is one moment for each of them.
 * - All arguments of a call are checked before anything is done: a call that fails on them has
 *   changed nothing. After LOST, UNREACHABLE or TIMED_OUT of far memory a table can only be closed;
 *   calls on it say so. Restore its last checkpoint into one that is made anew, in a new context if
 *   the memory server was started again.
 * - Arrays are borrowed for the call. What a call writes may not overlap with what it reads
 *   (INVALID_ARGUMENT).
 * - fork(): tables stay with the process that made them; in a child calls are UNSUPPORTED.
 */
#ifndef TIDEPOOL_TABLES_H
#define TIDEPOOL_TABLES_H

#include "tidepool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tables ---------------------------------------------------------------------------------- */

/** A table. Belongs to its context, which cannot be closed before it. */
typedef struct tidepool_table tidepool_table;

/** What rows are made of. Callers give and get float32 whatever it is. */
typedef enum tidepool_element {
  TIDEPOOL_FLOAT32 = 0,
  TIDEPOOL_FLOAT16 = 1,
  TIDEPOOL_BFLOAT16 = 2,
  TIDEPOOL_INT8 = 3 /**< signed, each times a float32 scale of the row's own */
} tidepool_element;

/** How gradients change rows. State is float32, and lies with the row. */
typedef enum tidepool_optimizer {
  TIDEPOOL_SGD = 0,
  TIDEPOOL_MOMENTUM = 1,
  TIDEPOOL_ADAGRAD = 2,
  TIDEPOOL_ROWWISE_ADAGRAD = 3,
  TIDEPOOL_ADAM = 4
} tidepool_optimizer;

/** Which ids a table knows. */
typedef enum tidepool_id_kind {
  TIDEPOOL_DENSE = 0, /**< row numbers, from 0 to rows - 1 */
  TIDEPOOL_HASHED = 1 /**< any 64-bit number: a row comes into being when its id is first used */
} tidepool_id_kind;

/** What a table with hashed ids keeps of each row for tidepool_table_expire(), in local memory:
 * four bytes, two bytes. A row is used when it changes: by a step, once however often it occurs in
 * the batch, and each time that it is written. */
#define TIDEPOOL_TRACK_LAST_USE                                                              \
  1u                           /**< the step of its last use, or in which it came into being \
                                */
#define TIDEPOOL_TRACK_USES 2u /**< how often it was used since then, up to 65,535 */

/** The values that rows begin with: a function of the seed and the id alone. */
typedef enum tidepool_initializer {
  TIDEPOOL_ZEROS = 0,
  TIDEPOOL_UNIFORM = 1, /**< from init_first to below init_second */
  TIDEPOOL_NORMAL = 2   /**< of mean init_first and standard deviation init_second */
} tidepool_initializer;

/** What steps use. */
typedef struct tidepool_rates {
  size_t struct_size;
  float learning_rate;
  float momentum;
  float beta1, beta2; /**< TIDEPOOL_ADAM */
  float epsilon;
  float weight_decay;
} tidepool_rates;

#define TIDEPOOL_RATES_INIT \
  { sizeof(tidepool_rates), 0.01f, 0.0f, 0.9f, 0.999f, 1e-8f, 0.0f }

typedef struct tidepool_table_params {
  size_t struct_size;
  const char*
      name; /**< in messages and checkpoints, which tables of one name cannot share; copied */
  const char*
      tier;        /**< as in tidepool_heap_params. NULL: the first far tier, "local" without any */
  uint64_t rows;   /**< at least 1. TIDEPOOL_HASHED: at most so many */
  uint32_t dim;    /**< numbers a row: 1 to 4096 */
  int32_t element; /**< a tidepool_element */
  int32_t optimizer;   /**< a tidepool_optimizer */
  int32_t id_kind;     /**< a tidepool_id_kind */
  int32_t initializer; /**< a tidepool_initializer */
  float init_first, init_second;
  uint64_t seed;
  /** Local memory for hot rows of a far tier, what is known of them (three bits a row for
   *  checkpoints counted in), and buffers; charged to the context's budget. 0: a share of what
   *  tables have together, see tidepool_tables_set_budget().
   */
  uint64_t dram_bytes;
  const tidepool_rates* rates; /**< NULL: TIDEPOOL_RATES_INIT */
  uint32_t track;              /**< TIDEPOOL_TRACK_LAST_USE, TIDEPOOL_TRACK_USES, both or 0 */
  /** TIDEPOOL_HASHED: how many times an id must be looked up before it gets a row, up to 255. Every
   * occurrence counts, but not those of look-ups with TIDEPOOL_INSERT_NOTHING. Until then it reads
   * as its row would begin, steps ignore its gradients, and announcing it does nothing; writing it
   * gives it a row at once. Counts are not in checkpoints. 0 and 1: the first use of any kind gives
   * it a row. */
  uint32_t admit_after;
  /** How many ids without a row are remembered for that. Counts are exact, and kept in two
   * generations of this size: an id is forgotten if at least this many others are seen before it is
   * seen again. Takes up to 31 bytes of local memory for each. 0: a quarter of the rows. */
  uint64_t remembered_ids;
} tidepool_table_params;

/** Parameters of a table, to begin with: set name, rows and dim. */
#define TIDEPOOL_TABLE_PARAMS_INIT                                                   \
  {                                                                                  \
    sizeof(tidepool_table_params), NULL, NULL, 0, 0, TIDEPOOL_FLOAT32, TIDEPOOL_SGD, \
        TIDEPOOL_DENSE, TIDEPOOL_ZEROS, 0.0f, 0.0f, 0, 0, NULL, 0, 0, 0              \
  }

/**
 * How much local memory tables without dram_bytes of their own have together, from now on, in all
 * contexts of the process. It is charged to the budget while there are such tables. Their shares
 * follow what each gains by it, from the look-ups they get. Until it is set, and after all contexts
 * of the process were closed: half of the budget at first, which then follows what tables and
 * managed pages gain by it, where all far tiers are memory servers.
 * Errors: INVALID_ARGUMENT for 0; NO_SPACE if the context's budget or the tables that are there do
 * not allow it; CONFLICT if rows of batches that were announced need more. It is then as it was.
 */
TIDEPOOL_API tidepool_status tidepool_tables_set_budget(tidepool_context* context, uint64_t bytes);

/**
 * Makes a table. Its rows get their first values, which takes the time to write them all, but for
 * those of fetch tiers, which get them when they are first read; rows of hashed ids do when they
 * come into being.
 *
 * @param params  copied.
 * @param out     gets the table; the caller closes it.
 * Errors: INVALID_ARGUMENT, naming the parameter; NOT_FOUND for a tier that is not there;
 * UNSUPPORTED for one that cannot hold tables; NO_SPACE if the tier or the budget is too small, or
 * 4096 tables are there; NO_MEMORY; UNREACHABLE, TIMED_OUT.
 */
TIDEPOOL_API tidepool_status tidepool_table_create(tidepool_context* context,
                                                   const tidepool_table_params* params,
                                                   tidepool_table** out);

/** Ends it, and gives back its memory in all tiers; rows are gone. Nobody else uses the table then,
 *  nor a checkpoint of it. Errors: CONFLICT while a checkpoint or publisher of it is not freed. */
TIDEPOOL_API tidepool_status tidepool_table_close(tidepool_table* table);

/** Sets what the next steps use. Errors: INVALID_ARGUMENT for a rate that is not a number. */
TIDEPOOL_API tidepool_status tidepool_table_set_rates(tidepool_table* table,
                                                      const tidepool_rates* rates);

/* ---- Look-ups and steps ---------------------------------------------------------------------- */

typedef enum tidepool_pooling { TIDEPOOL_SUM = 0, TIDEPOOL_MEAN = 1 } tidepool_pooling;

/** One table's part of a look-up or of a step. Bag b is made of the rows ids[offsets[b]] to
 *  ids[offsets[b + 1] - 1]. */
typedef struct tidepool_bags {
  size_t struct_size;
  tidepool_table* table;
  const int64_t* ids; /**< of hashed tables: any 64 bits */
  size_t ids_count;
  const int64_t* offsets; /**< bags + 1 numbers that do not fall, from 0 to ids_count */
  size_t bags;
  const float* weights; /**< one an id; NULL: all 1 */
  size_t weights_count; /**< ids_count, or 0 without weights */
  int32_t pooling;      /**< a tidepool_pooling */
  uint32_t flags;       /**< of a look-up: TIDEPOOL_INSERT_NOTHING, or 0; of a step: 0 */
} tidepool_bags;

/** Hashed ids without a row give what their row would begin with, and get none: the result is the
 *  same, and a table that is full is no error. For evaluation and serving. */
#define TIDEPOOL_INSERT_NOTHING 1u

#define TIDEPOOL_BAGS_INIT \
  { sizeof(tidepool_bags), NULL, NULL, 0, NULL, 0, NULL, 0, TIDEPOOL_SUM, 0 }

/**
 * Pools the rows of every bag, of several tables in one call: quicker than one after the other, for
 * the work is shared out over all processors, and requests to memory servers are under way
 * together. Empty bags give zeros.
 *
 * @param calls   `count` of them, all of one struct_size. A table may occur more than once.
 * @param outs    for each call where results go: bags x dim floats, a bag after the other.
 * @param floats  for each call how many floats there are at its out: bags x dim.
 * Errors: INVALID_ARGUMENT, NO_SPACE (a table with hashed ids is full, and new ids are to get rows,
 * see TIDEPOOL_INSERT_NOTHING); LOST, UNREACHABLE,
 * TIMED_OUT: what is at `outs` is then undefined.
 */
TIDEPOOL_API tidepool_status tidepool_tables_lookup(const tidepool_bags* calls, size_t count,
                                                    float* const* outs, const size_t* floats);

/**
 * One step of each table's optimizer. The gradients of all look-ups of a row are added up first, in
 * the order of the batch, so that a row takes one step however often it occurs.
 *
 * @param gradients  for each call the gradients of the bags' results: bags x dim floats.
 * @param floats     for each call how many floats there are: bags x dim.
 * Errors: as tidepool_tables_lookup(). After LOST, UNREACHABLE or TIMED_OUT some rows may have
 * taken the step.
 */
TIDEPOOL_API tidepool_status tidepool_tables_update(const tidepool_bags* calls, size_t count,
                                                    const float* const* gradients,
                                                    const size_t* floats);

/**
 * The rows of the ids, dim floats each, one after the other.
 * @param floats  how many floats there are at `out`: count x dim.
 * Errors: as tidepool_tables_lookup(), and NOT_FOUND for a hashed id without a row.
 */
TIDEPOOL_API tidepool_status tidepool_table_read_rows(tidepool_table* table, const int64_t* ids,
                                                      size_t count, float* out, size_t floats);

/**
 * The hashed ids that have rows, in the order of these: that in which they got them, but for those
 * that got the row of an id that was removed.
 * @param first     how many of them to leave out.
 * @param ids       gets the next ones.
 * @param capacity  for how many there is room at `ids`.
 * @param count     gets how many there are at `ids` now: fewer than `capacity` at the end.
 * Errors: UNSUPPORTED for a table with dense ids.
 */
TIDEPOOL_API tidepool_status tidepool_table_list_ids(tidepool_table* table, uint64_t first,
                                                     int64_t* ids, size_t capacity, size_t* count);

/**
 * Takes hashed ids out of the table: their rows are those of later ids. What they had learned and
 * their optimizer state are gone; when such an id is used again it is as a new one. Checkpoints
 * that are taken from then on hold what is left; one that is being taken holds what there was when
 * it began. Batches that were announced and name such an id are used as any others, but not read
 * ahead any more. Look-ups and steps of other threads come before or after the whole of it.
 *
 * @param ids      those that have no row are passed over, and so are those that occur again.
 * @param removed  gets how many had one. May be NULL.
 * Errors: UNSUPPORTED for a table with dense ids; LOST, UNREACHABLE, TIMED_OUT.
 */
TIDEPOOL_API tidepool_status tidepool_table_remove_ids(tidepool_table* table, const int64_t* ids,
                                                       size_t count, uint64_t* removed);

/** Which ids are to go. Where both are asked for, both must hold; 0: not asked for. */
typedef struct tidepool_expiry {
  size_t struct_size;
  uint64_t unused_for;      /**< their rows were not used in so many steps of the table, the newest
                                 one included (TIDEPOOL_TRACK_LAST_USE) */
  uint64_t used_fewer_than; /**< were used fewer times (TIDEPOOL_TRACK_USES); up to 65,535 */
} tidepool_expiry;

#define TIDEPOOL_EXPIRY_INIT \
  { sizeof(tidepool_expiry), 0, 0 }

/**
 * Removes the ids that the expiry says, as tidepool_table_remove_ids() does, between two calls of a
 * training loop for instance. It goes through what is kept of all rows, a quarter of a million at a
 * time, between which calls of other threads get their turn. What is tracked is in checkpoints;
 * rows that are restored from one without it count from there.
 *
 * @param removed  gets how many ids went. May be NULL.
 * Errors: as tidepool_table_remove_ids(); INVALID_ARGUMENT if nothing is asked for, or what the
 * table does not track.
 */
TIDEPOOL_API tidepool_status tidepool_table_expire(tidepool_table* table,
                                                   const tidepool_expiry* expiry,
                                                   uint64_t* removed);

/** Overwrites rows; their optimizer state begins anew. Of an id that occurs twice the later one
 *  stays. Errors: as tidepool_tables_lookup(). */
TIDEPOOL_API tidepool_status tidepool_table_write_rows(tidepool_table* table, const int64_t* ids,
                                                       size_t count, const float* in,
                                                       size_t floats);

/**
 * As tidepool_table_read_rows(), as part of training: counts as a look-up, so that rows which are
 * gathered often come to be in local memory; far rows stay at hand for a scatter that follows.
 * (Reading a table through with tidepool_table_read_rows() does not make its rows hot.)
 */
TIDEPOOL_API tidepool_status tidepool_table_gather_rows(tidepool_table* table, const int64_t* ids,
                                                        size_t count, float* out, size_t floats);

/** As tidepool_table_write_rows(), as part of training: for rows that were just gathered and have
 *  changed. Of a table without optimizer state (TIDEPOOL_SGD) these two are all that an optimizer
 *  of the caller's own needs. */
TIDEPOOL_API tidepool_status tidepool_table_scatter_rows(tidepool_table* table, const int64_t* ids,
                                                         size_t count, const float* in,
                                                         size_t floats);

/* ---- Batches that are known ahead ------------------------------------------------------------ */

/**
 * Announces the ids of a batch that is going to be used. Rows of fetch tiers are brought in while
 * the caller goes on, and stay until the batch is finished; of other tiers nothing need be done.
 * Batches are used in the order in which they were announced, at most 120 of them at a time.
 *
 * @param token  gets what tidepool_table_finish() takes.
 * Errors: as tidepool_tables_lookup(); NO_SPACE if 120 are announced and not finished.
 */
TIDEPOOL_API tidepool_status tidepool_table_prefetch(tidepool_table* table, const int64_t* ids,
                                                     size_t count, uint64_t* token);

/** The batch, and those that were announced before it, have been used. Errors: INVALID_ARGUMENT for
 *  a token that was never given out; one that is finished already is no error. */
TIDEPOOL_API tidepool_status tidepool_table_finish(tidepool_table* table, uint64_t token);

/**
 * No more batches are going to be announced for now. Those that were are finished, and the memory
 * that is kept for their rows is for rows that are used often, until a batch is announced again.
 * Errors: LOST, UNREACHABLE, TIMED_OUT.
 */
TIDEPOOL_API tidepool_status tidepool_table_stop_prefetch(tidepool_table* table);

/**
 * Each of `count` ids once, in rising order, to `distinct`, which has room for `count` of them;
 * `*distinct_count` is how many they are. `positions`, of `count` too: which of them each id is.
 * For steps that are made beside the table: its rows are gathered once each, and scattered.
 * Negative ids, which no row has, come last. Ids and results do not overlap. Errors:
 * INVALID_ARGUMENT. Thread-safe.
 */
TIDEPOOL_API tidepool_status tidepool_distinct_ids(const int64_t* ids, size_t count,
                                                   int64_t* distinct, size_t* distinct_count,
                                                   int64_t* positions);

/* ---- Statistics ------------------------------------------------------------------------------ */

/** Counts since the table was made. */
typedef struct tidepool_table_stats {
  size_t struct_size;
  uint64_t rows;       /**< that exist */
  uint64_t lookups;    /**< of rows */
  uint64_t hits;       /**< in local memory */
  uint64_t in_place;   /**< read where they are in a direct tier */
  uint64_t fetched;    /**< rows that a call had to wait for */
  uint64_t prefetched; /**< rows that were read ahead of a call */
  uint64_t inserted;   /**< rows of hashed ids that came into being */
  uint64_t evictions, written_back;
  uint64_t steps;
  uint64_t dram_bytes;     /**< local memory: rows, metadata and buffers */
  uint64_t metadata_bytes; /**< of that, what is known of rows */
  uint64_t dram_budget;    /**< what the table is held to now; 0: its rows are local */
  uint64_t removed;        /**< rows of hashed ids that were given up */
  uint64_t unwritten;      /**< rows of a fetch tier that were read, but not asked for: they were
                                never written there, and made from the table's first values */
} tidepool_table_stats;

/** Fills in as much of `out` as its struct_size says. */
TIDEPOOL_API tidepool_status tidepool_table_get_stats(tidepool_table* table,
                                                      tidepool_table_stats* out);

/* ---- Checkpoints (docs/checkpoint-format.md) ------------------------------------------------- */

/** A checkpoint that is being taken. */
typedef struct tidepool_checkpoint tidepool_checkpoint;

typedef enum tidepool_checkpoint_kind {
  TIDEPOOL_FULL = 0,
  TIDEPOOL_INCREMENTAL = 1 /**< rows that changed since the newest one in the directory, which this
                                process has taken or restored */
} tidepool_checkpoint_kind;

typedef struct tidepool_checkpoint_params {
  size_t struct_size;
  int32_t kind;              /**< a tidepool_checkpoint_kind */
  uint32_t keep;             /**< checkpoints to keep once this one is complete; 0: all */
  uint64_t bytes_per_second; /**< reads tables no faster than this; 0: as fast as the disk */
  /** For old bytes of rows that change meanwhile; when it is full, steps wait for the disk. 0: 64
   *  MiB, or an eighth of the budget where that is less. */
  uint64_t copy_bytes;
} tidepool_checkpoint_params;

#define TIDEPOOL_CHECKPOINT_PARAMS_INIT \
  { sizeof(tidepool_checkpoint_params), TIDEPOOL_FULL, 0, 0, 0 }

typedef struct tidepool_checkpoint_info {
  size_t struct_size;
  uint64_t number; /**< of the checkpoint, in its directory */
  uint64_t rows;   /**< so far */
  uint64_t bytes;
  int32_t complete; /**< not 0: it exists */
  uint32_t reserved;
} tidepool_checkpoint_info;

/**
 * Begins a checkpoint of the tables as they are between two calls on any of them, and returns while
 * threads of its own write it. If it fails or the process ends first there is no such checkpoint,
 * and those before are as they were. Its buffers, 16 MiB and copy_bytes, are charged to the budget
 * until it is freed.
 *
 * @param tables     `count` of them, each of another name.
 * @param directory  made if it is not there, with what it is in. One job's: `keep` counts all of
 *                   its checkpoints.
 * @param params     NULL: TIDEPOOL_CHECKPOINT_PARAMS_INIT.
 * @param out        gets the checkpoint; the caller frees it before any of the tables is closed.
 * Errors: INVALID_ARGUMENT; CONFLICT (somebody writes there, a checkpoint of a table is under way,
 * changes do not count from the newest one there); NOT_FOUND (incremental, and there is none);
 * NO_SPACE (the budget); PERMISSION, IO.
 */
TIDEPOOL_API tidepool_status tidepool_checkpoint_start(tidepool_table* const* tables, size_t count,
                                                       const char* directory,
                                                       const tidepool_checkpoint_params* params,
                                                       tidepool_checkpoint** out);

/** How far it is. Does not wait. */
TIDEPOOL_API tidepool_status tidepool_checkpoint_progress(tidepool_checkpoint* checkpoint,
                                                          tidepool_checkpoint_info* out);

/** Waits until it is over, and fills in `out` unless it is NULL. Errors: NO_SPACE (the disk), IO,
 *  CONFLICT (cancelled), what reading far rows can end in. */
TIDEPOOL_API tidepool_status tidepool_checkpoint_wait(tidepool_checkpoint* checkpoint,
                                                      tidepool_checkpoint_info* out);

/** Gives it up as soon as may be, and returns at once. Too late, it does nothing. */
TIDEPOOL_API tidepool_status tidepool_checkpoint_cancel(tidepool_checkpoint* checkpoint);

/** Cancels it if it is under way; in a child of fork(), does nothing. NULL is allowed. */
TIDEPOOL_API void tidepool_checkpoint_free(tidepool_checkpoint* checkpoint);

/**
 * Restores tables from those of their names in a checkpoint, of whatever tier and budget those
 * were. Optimizer state comes back, and the number of steps.
 *
 * @param number    0 for the newest.
 * @param restored  if not NULL: gets the number.
 * Errors, with nothing changed: NOT_FOUND, INVALID_ARGUMENT (another format), NO_SPACE (too few
 * rows), CONFLICT (a checkpoint of a table is under way, batches are announced, a hashed table has
 * rows). CORRUPT and IO can also come half way: the tables are then to be restored again, or
 * closed.
 */
TIDEPOOL_API tidepool_status tidepool_tables_restore(tidepool_table* const* tables, size_t count,
                                                     const char* directory, uint64_t number,
                                                     uint64_t* restored);

/**
 * The same for serving, or for going on with another optimizer: takes weights alone into tables
 * whose optimizer may differ. Its state and its steps begin anew, and a table with TIDEPOOL_SGD has
 * no memory for any. The next checkpoint of such a table is a full one.
 */
TIDEPOOL_API tidepool_status tidepool_tables_restore_weights(tidepool_table* const* tables,
                                                             size_t count, const char* directory,
                                                             uint64_t number, uint64_t* restored);

/**
 * Reads a checkpoint through. OK: it can be restored. Needs neither tables nor a context.
 * @param number  0 for the newest.
 * @param out     if not NULL, gets what was read, whether it is whole or not.
 * Errors: CORRUPT, with the first problem as text; NOT_FOUND, PERMISSION, IO.
 */
TIDEPOOL_API tidepool_status tidepool_checkpoint_verify(const char* directory, uint64_t number,
                                                        tidepool_checkpoint_info* out);

/* ---- Tables that one process publishes and others read (docs/tables.md) ---------------------- */

/** Who publishes tables: others of this host look rows up as they were at the last publish. */
typedef struct tidepool_publisher tidepool_publisher;

typedef struct tidepool_publisher_params {
  size_t struct_size;
  uint32_t mode; /**< rights of the file, whatever the umask: who may read it may read the tables */
  uint32_t reserved;
} tidepool_publisher_params;

#define TIDEPOOL_PUBLISHER_PARAMS_INIT \
  { sizeof(tidepool_publisher_params), 0600, 0 }

/**
 * Begins to publish tables in a file of this host's: in a tmpfs such as /dev/shm rows are in
 * memory, once for all readers; on a disk the hot ones are, in the page cache. The file takes the
 * weights of all rows, those that changed in the last two generations once more, and 8 bytes a row
 * (20 of hashed ids); the budget is charged two bits a row until the publisher is freed.
 *
 * @param tables  `count` of them, each of another name. None has another publisher.
 * @param path    made if it is not there. A file that a publisher of the same tables (names, rows,
 *                dim, element, ids, initializer) has left, in whatever way, is gone on with, and
 *                readers have what it published until this one publishes.
 * @param params  NULL: TIDEPOOL_PUBLISHER_PARAMS_INIT.
 * @param out     gets the publisher; the caller frees it before any of the tables is closed.
 * Errors: INVALID_ARGUMENT; CONFLICT (a table has a publisher, another process publishes there, or
 * other tables are there); CORRUPT (another kind of file is there); UNSUPPORTED (2^31 rows or more,
 * another version of the format); NO_SPACE (budget, file system); PERMISSION (also if the file is
 * another user's, who could change what is published); NO_MEMORY, IO.
 */
TIDEPOOL_API tidepool_status tidepool_publisher_create(tidepool_table* const* tables, size_t count,
                                                       const char* path,
                                                       const tidepool_publisher_params* params,
                                                       tidepool_publisher** out);

/**
 * Publishes the rows that have changed since the last time, the first time all of them, as they are
 * between two calls on any of the tables; these wait meanwhile. Readers have all of it from one
 * moment on, or none: if it fails or the process ends they have what they had, and the next call
 * makes up for it.
 * @param generation  if not NULL: gets its number, which counts up from 1.
 * Errors: NO_SPACE (where the file is); NOT_FOUND (it was removed or cut short: make another
 * publisher); UNSUPPORTED in a child of fork(); LOST, UNREACHABLE, TIMED_OUT.
 */
TIDEPOOL_API tidepool_status tidepool_publish(tidepool_publisher* publisher, uint64_t* generation);

/** Readers keep what was published last. NULL is allowed. In a child of fork(), does nothing. */
TIDEPOOL_API void tidepool_publisher_free(tidepool_publisher* publisher);

/** Tables that another process publishes, or has published. Needs no context. Reading locks
 * nothing, and any number of threads may, in children of fork() as well. A reader has no row of its
 * own: nothing but buffers of a call counts to its budget. */
typedef struct tidepool_published tidepool_published;

/**
 * Opens what is published at a path. Whoever may write the file is trusted not to cut it short. Who
 * has opened a file that was removed since keeps what it has; its published_at grows old.
 * @param out  gets it; the caller closes it.
 * Errors, each with what to do next: NOT_FOUND (no such file, nothing is published there yet),
 * PERMISSION, CORRUPT (another kind of file), UNSUPPORTED (another version of the format),
 * STALE_EPOCH (of another host, or of before this one started), NO_MEMORY, IO.
 */
TIDEPOOL_API tidepool_status tidepool_published_open(const char* path, tidepool_published** out);

/** Nobody reads any more. NULL is allowed. */
TIDEPOOL_API void tidepool_published_close(tidepool_published* published);

typedef struct tidepool_published_table {
  size_t struct_size;
  size_t table;  /**< its number, which calls name it by */
  uint64_t rows; /**< TIDEPOOL_HASHED: at most so many */
  uint32_t dim;
  int32_t element; /**< a tidepool_element */
  int32_t id_kind; /**< a tidepool_id_kind */
  uint32_t reserved;
} tidepool_published_table;

/** Fills in as much of `out` as its struct_size says. Errors: NOT_FOUND, naming the tables there.
 */
TIDEPOOL_API tidepool_status tidepool_published_find(tidepool_published* published,
                                                     const char* name,
                                                     tidepool_published_table* out);

typedef struct tidepool_published_info {
  size_t struct_size;
  uint64_t generation; /**< the newest */
  uint64_t tables;
  uint64_t repeated;     /**< look-ups that began again: two generations were published meanwhile */
  uint64_t published_at; /**< when the newest generation was: nanoseconds since 1970 */
} tidepool_published_info;

/** Fills in as much of `out` as its struct_size says. Errors: as tidepool_published_lookup(). */
TIDEPOOL_API tidepool_status tidepool_published_get_info(tidepool_published* published,
                                                         tidepool_published_info* out);

/**
 * As tidepool_tables_lookup(), of one generation: the newest one when the call begins, of all
 * tables and rows alike. Hashed ids without a row give what it would begin with.
 *
 * @param tables      for each call the number of its table.
 * @param calls       `table` is not looked at; flags: TIDEPOOL_INSERT_NOTHING, or 0, which is the
 *                    same.
 * @param generation  if not NULL: gets that generation.
 * Errors: INVALID_ARGUMENT; TIMED_OUT if generations come so fast that each of a hundred tries was
 * overtaken by two of them. What is at `outs` is then undefined.
 */
TIDEPOOL_API tidepool_status tidepool_published_lookup(tidepool_published* published,
                                                       const size_t* tables,
                                                       const tidepool_bags* calls, size_t count,
                                                       float* const* outs, const size_t* floats,
                                                       uint64_t* generation);

/** As tidepool_table_read_rows(), of one generation. Errors: as tidepool_published_lookup(), and
 *  NOT_FOUND for a hashed id without a row. */
TIDEPOOL_API tidepool_status tidepool_published_read_rows(tidepool_published* published,
                                                          size_t table, const int64_t* ids,
                                                          size_t count, float* out, size_t floats,
                                                          uint64_t* generation);

#ifdef __cplusplus
}
#endif

#endif /* TIDEPOOL_TABLES_H */
