/* SPDX-License-Identifier: Apache-2.0 */
/* A C program of the public API's embedding tables, built against the installed library. `own`
   starts memory of its own, `run` expects to be under `tidepool run`: its tables are then in the
   run's far tiers, and their local memory counts to the run's budget. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tidepool/tidepool.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
enum { ROWS = 100000, DIM = 16, IDS = 4096 };

static void must(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s: %s (%s)\n", what, tidepool_error_text(),
          tidepool_status_name(tidepool_error_status()));
  exit(1);
}

/* Shared memory that is mapped in huge pages. */
static unsigned long huge_kib(void) {
  FILE* const rollup = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  unsigned long kib = 0;
  must(rollup != NULL, "smaps_rollup");
  while (fgets(line, sizeof line, rollup)) sscanf(line, "ShmemPmdMapped: %lu", &kib);
  fclose(rollup);
  return kib;
}

/* Whether this kernel makes huge pages of a memory file's when it is asked (MADV_COLLAPSE). */
static int can_be_huge(void) {
  const int file = memfd_create("probe", 0);
  must(file >= 0 && ftruncate(file, (off_t)(2 * MIB)) == 0, "memfd");
  char* const room = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(room != MAP_FAILED, "mmap");
  char* const at = mmap((void*)(((uintptr_t)room + 2 * MIB - 1) & ~(2 * MIB - 1)), 2 * MIB,
                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  must(at != MAP_FAILED, "mmap");
  *at = 1;
  const int done = madvise(at, 2 * MIB, 25) == 0;
  munmap(room, 4 * MIB);
  close(file);
  return done;
}

static tidepool_table* make_table(tidepool_context* context, const char* name, const char* tier) {
  tidepool_table_params params = TIDEPOOL_TABLE_PARAMS_INIT;
  params.name = name;
  params.tier = tier;
  params.rows = ROWS;
  params.dim = DIM;
  params.optimizer = TIDEPOOL_ADAGRAD;
  params.initializer = TIDEPOOL_UNIFORM;
  params.init_first = -1;
  params.init_second = 1;
  tidepool_table* table = NULL;
  must(tidepool_table_create(context, &params, &table) == TIDEPOOL_OK, "table_create");
  return table;
}

/* The same steps on a table of any tier have the same result. */
static void train(tidepool_table* table, float* result) {
  static int64_t ids[IDS], offsets[IDS / 8 + 1];
  static float gradients[IDS / 8 * DIM];
  uint64_t state = 1;
  for (size_t i = 0; i < IDS / 8 * DIM; ++i) gradients[i] = (float)(i % 17) - 8;
  for (int step = 0; step < 50; ++step) {
    for (size_t i = 0; i < IDS; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      ids[i] = (int64_t)((state >> 33) % (i % 4 == 0 ? ROWS : 1000));
    }
    for (size_t bag = 0; bag <= IDS / 8; ++bag) offsets[bag] = (int64_t)(bag * 8);
    tidepool_bags bags = TIDEPOOL_BAGS_INIT;
    bags.table = table;
    bags.ids = ids;
    bags.ids_count = IDS;
    bags.offsets = offsets;
    bags.bags = IDS / 8;
    const size_t floats = IDS / 8 * DIM;
    uint64_t token;
    must(tidepool_table_prefetch(table, ids, IDS, &token) == TIDEPOOL_OK, "prefetch");
    must(tidepool_tables_lookup(&bags, 1, &result, &floats) == TIDEPOOL_OK, "lookup");
    const float* const steps = gradients;
    must(tidepool_tables_update(&bags, 1, &steps, &floats) == TIDEPOOL_OK, "update");
    must(tidepool_table_finish(table, token) == TIDEPOOL_OK, "finish");
  }
}

/* What another process would have: the rows as they were when they were published. */
static void publish(tidepool_table* table) {
  char path[] = "/tmp/tidepool-published-XXXXXX";
  must(close(mkstemp(path)) == 0, "a file");
  tidepool_publisher_params params = TIDEPOOL_PUBLISHER_PARAMS_INIT;
  params.mode = 0640;
  tidepool_publisher* publisher = NULL;
  must(tidepool_publisher_create(&table, 1, path, &params, &publisher) == TIDEPOOL_OK, "publisher");
  uint64_t generation = 0, seen = 0;
  must(tidepool_publish(publisher, &generation) == TIDEPOOL_OK && generation == 1, "publish");
  tidepool_published* published = NULL;
  must(tidepool_published_open(path, &published) == TIDEPOOL_OK, "published_open");
  tidepool_published_table info = {.struct_size = sizeof info};
  must(tidepool_published_find(published, "local", &info) == TIDEPOOL_OK, "published_find");
  must(info.rows == ROWS && info.dim == DIM, "what is published");
  const int64_t ids[] = {1, 99}, offsets[] = {0, 2};
  tidepool_bags bags = TIDEPOOL_BAGS_INIT;
  bags.table = table;
  bags.ids = ids;
  bags.ids_count = 2;
  bags.offsets = offsets;
  bags.bags = 1;
  float wanted[DIM], got[DIM], *out = wanted;
  const size_t floats = DIM;
  must(tidepool_tables_lookup(&bags, 1, &out, &floats) == TIDEPOOL_OK, "lookup");
  out = got;
  must(tidepool_published_lookup(published, &info.table, &bags, 1, &out, &floats, &seen) ==
           TIDEPOOL_OK,
       "published_lookup");
  must(seen == generation && memcmp(got, wanted, sizeof got) == 0, "published rows");
  tidepool_publisher_free(publisher);
  must(tidepool_published_read_rows(published, info.table, ids, 1, out, DIM, NULL) == TIDEPOOL_OK,
       "published_read_rows");
  tidepool_published_info now = {.struct_size = sizeof now};
  must(tidepool_published_get_info(published, &now) == TIDEPOOL_OK && now.generation == 1, "info");
  tidepool_published_close(published);
  must(unlink(path) == 0, "unlink");
}

int main(int argc, char** argv) {
  must(argc > 1, "own or run");
  const int under_run = strcmp(argv[1], "run") == 0;
  tidepool_options* options = NULL;
  must(tidepool_options_create("dram:96M,far:cxl:256M", &options) == TIDEPOOL_OK, "options");
  tidepool_context* context = NULL;
  must(tidepool_open(options, &context) == TIDEPOOL_OK, "open");
  tidepool_options_free(options);
  must(tidepool_tables_set_budget(context, 2 * MIB) == TIDEPOOL_OK, "set_budget");
  static float far[IDS / 8 * DIM], local[IDS / 8 * DIM];
  tidepool_context_info info = {.struct_size = sizeof info};
  must(tidepool_context_get_info(context, &info) == TIDEPOOL_OK, "info");
  const int huge = can_be_huge();
  /* Every far tier that there is, then local memory. The first is an emulated pool. */
  for (unsigned tier = 1; tier <= info.far_tiers; ++tier) {
    const char number[] = {(char)('0' + tier), '\0'};
    const unsigned long before = huge_kib();
    tidepool_table* const table = make_table(context, "far", number);
    must(tier > 1 || !huge || huge_kib() - before >= ROWS * DIM * 8 / 1024, "huge pages");
    train(table, tier == 1 ? far : local);
    must(tier == 1 || memcmp(far, local, sizeof far) == 0, "tiers differ");
    tidepool_table_stats stats = {.struct_size = sizeof stats};
    must(tidepool_table_get_stats(table, &stats) == TIDEPOOL_OK, "stats");
    must(stats.dram_bytes <= stats.dram_budget && stats.dram_budget <= 2 * MIB, "budget");
    must(stats.hits > 0 && stats.in_place + stats.fetched + stats.prefetched > 0,
         "some rows are near, some far");
    must(tidepool_context_get_info(context, &info) == TIDEPOOL_OK, "info");
    must(info.charged_bytes == 2 * MIB, "charged");
    must(info.origin == (under_run ? TIDEPOOL_ORIGIN_RUN : TIDEPOOL_ORIGIN_OWN), "origin");
    must(tidepool_table_close(table) == TIDEPOOL_OK, "close");
  }
  tidepool_table* const table = make_table(context, "local", "local");
  train(table, local);
  must(memcmp(far, local, sizeof far) == 0, "the same bits in every tier");
  publish(table);
  must(tidepool_table_close(table) == TIDEPOOL_OK, "close");
  must(tidepool_close(context) == TIDEPOOL_OK, "close of the context");
  return 0;
}
