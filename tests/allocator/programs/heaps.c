/* SPDX-License-Identifier: Apache-2.0 */
/* A C program of the public API, built against the installed library. `own` starts memory of its
   own, `run` expects to be under `tidepool run`, whose budget it then shares. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tidepool/tidepool.h>

#define MIB ((size_t)1 << 20)

static void must(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s: %s (%s)\n", what, tidepool_error_text(),
          tidepool_status_name(tidepool_error_status()));
  exit(1);
}

static void fill(unsigned char* bytes, size_t size) {
  for (size_t at = 0; at < size; at += 4096) bytes[at] = (unsigned char)(at / 4096 % 251 + 1);
}

static int filled(const unsigned char* bytes, size_t size) {
  for (size_t at = 0; at < size; at += 4096) {
    if (bytes[at] != (unsigned char)(at / 4096 % 251 + 1)) return 0;
  }
  return 1;
}

static uint64_t far_bytes(tidepool_heap* heap) {
  tidepool_heap_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  must(tidepool_heap_get_stats(heap, &stats) == TIDEPOOL_OK, "stats");
  uint64_t sum = 0;
  for (int tier = 1; tier < TIDEPOOL_MAX_TIERS; ++tier) sum += stats.far_bytes[tier];
  return sum;
}

/* Blocks of malloc() and of the heap are one budget's under a run: together they are larger. */
static void share_budget(tidepool_heap* heap) {
  const size_t size = 80 * MIB;
  unsigned char* mine = malloc(size);
  unsigned char* heaps = tidepool_alloc(heap, size);
  must(mine != NULL && heaps != NULL, "blocks");
  fill(mine, size);
  fill(heaps, size);
  must(filled(mine, size) && filled(heaps, size), "contents");
  must(tidepool_free(heap, heaps) == TIDEPOOL_OK, "free");
  free(mine);
}

int main(int argc, char** argv) {
  const int under_run = argc > 1 && strcmp(argv[1], "run") == 0;
  tidepool_options* options = NULL;
  must(tidepool_options_create("dram:96M,far:cxl:256M", &options) == TIDEPOOL_OK, "options");
  tidepool_context* context = NULL;
  must(tidepool_open(options, &context) == TIDEPOOL_OK, "open");
  tidepool_options_free(options);
  tidepool_heap* heap = NULL;
  must(tidepool_heap_create(context, NULL, &heap) == TIDEPOOL_OK, "heap");

  tidepool_context_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  must(tidepool_context_get_info(context, &info) == TIDEPOOL_OK, "info");
  must(info.origin == (under_run ? TIDEPOOL_ORIGIN_RUN : TIDEPOOL_ORIGIN_OWN), "origin");
  must(info.budget_bytes == 96 * MIB && info.far_tiers == 1, "options in force");

  char* text = tidepool_alloc(heap, 6);
  must(text != NULL, "alloc");
  memcpy(text, "hello", 6);
  text = tidepool_realloc(heap, text, 100000);
  must(text != NULL && strcmp(text, "hello") == 0, "realloc");
  must(tidepool_free(heap, text) == TIDEPOOL_OK, "free");
  must(tidepool_free(heap, &info) == TIDEPOOL_INVALID_ARGUMENT, "free of a stranger");
  share_budget(heap);

  unsigned char* block = tidepool_aligned_alloc(heap, 2 * MIB, 16 * MIB);
  must(block != NULL, "aligned");
  fill(block, 16 * MIB);
  tidepool_completion* gone = NULL;
  must(tidepool_evict(context, block, 16 * MIB, &gone) == TIDEPOOL_OK, "evict");
  must(tidepool_completion_wait(gone, 30000000000u) == TIDEPOOL_OK, "wait");
  tidepool_completion_free(gone);
  must(far_bytes(heap) >= 16 * MIB, "pages are far");
  must(filled(block, 16 * MIB), "contents of far pages");

  tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
  params.policy = TIDEPOOL_PINNED;
  params.tier = "local";
  tidepool_heap* local = NULL;
  must(tidepool_heap_create(context, &params, &local) == TIDEPOOL_OK, "local heap");
  must(tidepool_alloc(local, 256 * MIB) == NULL, "beyond the budget");
  must(tidepool_error_status() == TIDEPOOL_NO_SPACE, "no space");
  must(tidepool_calloc(local, 1000, 1000) != NULL, "calloc");

  static char json[65536];
  must(tidepool_stats_json(context, json, sizeof json, NULL) == TIDEPOOL_OK, "json");
  must(strstr(json, "\"dram_budget_bytes\":100663296") != NULL, "budget in the statistics");
  must(tidepool_heap_destroy(local) == TIDEPOOL_OK, "destroy");
  must(tidepool_close(context) == TIDEPOOL_CONFLICT, "close while in use");
  must(tidepool_heap_destroy(heap) == TIDEPOOL_OK, "destroy");
  must(tidepool_close(context) == TIDEPOOL_OK, "close");
  puts("ok");
  return 0;
}
