// SPDX-License-Identifier: Apache-2.0
// A program for virtual machines: trains an embedding table in a far tier beside one in local
// memory and compares them bit for bit, then says where the pages of the tier are by the kernel's
// word.
//   table-on-tier SPEC [ROWS]   (such as numa:1); prints one JSON object; exit status 0 if all is
//   well
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "allocator/table/table_space.h"

namespace tidepool {
namespace {

constexpr uint32_t kDim = 32;
constexpr uint64_t kUsualRows = 100'000;  // 24 MiB with their state: an emulated processor is slow
constexpr size_t kBags = 128, kEach = 16;
constexpr int kSteps = 30;

int failed(const char* what, const Error& error) {
  fprintf(stderr, "table-on-tier: %s: %s\n", what, error.text());
  return 1;
}

TableOptions tableOptions(uint64_t rows) {
  TableOptions options;
  options.rows = rows;
  options.format.dim = kDim;
  options.format.optimizer = Optimizer::kAdagrad;
  options.initializer = {Initializer::Kind::kUniform, -1, 1, 3};
  return options;
}

/// A step of both tables. False if their look-ups differ.
Result<bool> step(EmbeddingTable& far, EmbeddingTable& near, uint64_t rows, Workers& workers,
                  std::mt19937_64& random) {
  std::vector<int64_t> ids(kBags * kEach), offsets(kBags + 1);
  for (size_t bag = 0; bag <= kBags; ++bag) offsets[bag] = static_cast<int64_t>(bag * kEach);
  for (int64_t& id : ids) {
    const double unit = static_cast<double>(random() % 1'000'003) / 1'000'003;
    id = static_cast<int64_t>(static_cast<double>(rows) * unit * unit * unit);
  }
  std::vector<float> got(kBags * kDim), wanted(kBags * kDim), gradients(kBags * kDim);
  for (float& one : gradients) one = static_cast<float>(random() % 1000) / 500 - 1;
  const Batch batch{ids, offsets, nullptr, Pooling::kSum};
  const EmbeddingTable::BagCall calls[] = {{&far, batch, got.data(), kDim},
                                           {&near, batch, wanted.data(), kDim}};
  TP_TRY(EmbeddingTable::bags(calls, workers));
  const EmbeddingTable::UpdateCall updates[] = {{&far, batch, gradients.data(), kDim},
                                                {&near, batch, gradients.data(), kDim}};
  TP_TRY(EmbeddingTable::updates(updates, workers));
  return memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0;
}

Result<bool> sameRows(EmbeddingTable& far, EmbeddingTable& near, uint64_t rows) {
  std::vector<int64_t> ids(rows);
  for (uint64_t row = 0; row < rows; ++row) ids[row] = static_cast<int64_t>(row);
  std::vector<float> got(rows * kDim), wanted(rows * kDim);
  TP_TRY(far.readRows(ids, got.data()));
  TP_TRY(near.readRows(ids, wanted.data()));
  return memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0;
}

/// Present pages of mappings of the tier's file, by node: asked of move_pages(2), page by page.
std::map<int, uint64_t> pagesByNode() {
  std::map<int, uint64_t> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:tidepool-numa") == std::string::npos) continue;
    unsigned long from = 0, to = 0;
    if (sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2) continue;
    for (unsigned long at = from; at < to; at += kPageSize) {
      void* page = reinterpret_cast<void*>(at);
      int node = -1;
      if (syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &node, 0) == 0 && node >= 0)
        ++found[node];
    }
  }
  return found;
}

int run(const char* text, uint64_t rows) {
  const auto spec = parseFarSpec(text);
  if (!spec) return failed(text, spec.error());
  auto space = TableSpace::create({&*spec, 1}, 2, Nanoseconds(5'000'000'000), Bytes(4 * kMiB));
  if (!space) return failed("space", space.error());
  auto far = (*space)->createTable(tableOptions(rows), 1);
  if (!far) return failed("the table in the tier", far.error());
  auto near = (*space)->createTable(tableOptions(rows), 0);
  if (!near) return failed("the table in local memory", near.error());
  std::mt19937_64 random(11);
  bool same = true;
  for (int i = 0; same && i < kSteps; ++i) {
    const auto stepped = step(**far, **near, rows, (*space)->workers(), random);
    if (!stepped) return failed("a step", stepped.error());
    same = *stepped;
  }
  const auto all = sameRows(**far, **near, rows);
  if (!all) return failed("rows", all.error());
  same = same && *all;
  const TableCounts counts = (*far)->counts();
  printf("{\"same\": %s, \"rows_bytes\": %llu, \"in_place\": %llu, \"hits\": %llu, \"nodes\": {",
         same ? "true" : "false",
         static_cast<unsigned long long>(rows * tableOptions(rows).format.stride()),
         static_cast<unsigned long long>(counts.in_place),
         static_cast<unsigned long long>(counts.hits));
  const char* between = "";
  for (const auto& [node, pages] : pagesByNode()) {
    printf("%s\"%d\": %llu", between, node, static_cast<unsigned long long>(pages * kPageSize));
    between = ", ";
  }
  printf("}}\n");
  fflush(stdout);
  // For who wants the kernel's other account of it.
  std::ifstream numa("/proc/self/numa_maps");
  for (std::string line; std::getline(numa, line);) {
    if (line.find("memfd:tidepool-numa") != std::string::npos)
      fprintf(stderr, "%s\n", line.c_str());
  }
  return same ? 0 : 1;
}

}  // namespace
}  // namespace tidepool

int main(int count, char** arguments) {
  const uint64_t rows = count == 3 ? strtoull(arguments[2], nullptr, 10) : tidepool::kUsualRows;
  if (count < 2 || count > 3 || rows == 0) {
    fprintf(stderr, "usage: table-on-tier SPEC [ROWS]\n");
    return 2;
  }
  return tidepool::run(arguments[1], rows);
}
