// SPDX-License-Identifier: Apache-2.0
// Trace generators for the policy simulator. See policy_trace.h. Deterministic for a given input.
#include "bench/policy_trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tidepool::bench {
namespace {

constexpr uint64_t kPage = 4096;

// ---- fasttext ----

constexpr uint32_t kBuckets = 2'000'000;
constexpr uint32_t kRowBytes = 400;          // 100 floats
constexpr uint32_t kHashSlots = 30'000'000;  // its word2int_ table, 4 bytes a slot
constexpr uint32_t kMinCount = 5;
constexpr int kMinGram = 3, kMaxGram = 6, kWindow = 5;
constexpr int kNegatives = 5;
constexpr double kNegativeTable = 10'000'000;  // entries, 4 bytes each
constexpr uint64_t kEntryBytes = 72;           // a word's string, count, type and vector
constexpr uint64_t kSubwordsBytes = 144;       // its subwords' heap block, about
constexpr size_t kMaxLine = 1024;              // tokens
constexpr double kSubsample = 1e-4;

uint32_t fnv(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (char c : text) {
    hash ^= static_cast<uint32_t>(static_cast<int8_t>(c));  // sign-extended, as fasttext does
    hash *= 16777619u;
  }
  return hash;
}

struct Corpus {
  std::vector<std::vector<uint32_t>> lines;  // token: index into slot and word
  std::vector<uint32_t> slot;                // per distinct token: its place in word2int_
  std::vector<int32_t> word;                 // per distinct token: rank, or -1 if too rare
  std::vector<uint32_t> count;               // per rank
  std::vector<std::string> text;             // per rank
  uint64_t tokens = 0;
};

Corpus readCorpus(const std::string& text) {
  Corpus corpus;
  std::unordered_map<std::string_view, uint32_t> ids;
  std::vector<std::string_view> names;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> line;
  const auto token = [&](std::string_view name) {
    const auto [it, fresh] = ids.try_emplace(name, static_cast<uint32_t>(names.size()));
    if (fresh) {
      names.push_back(name);
      counts.push_back(0);
    }
    ++counts[it->second];
    line.push_back(it->second);
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \t\n", at), text.size());
    if (end > at) token(std::string_view(text).substr(at, end - at));
    const bool newline = end < text.size() && text[end] == '\n';
    if (newline) token("</s>");
    if (newline || line.size() >= kMaxLine) corpus.lines.push_back(std::exchange(line, {}));
    at = end + 1;
  }
  corpus.lines.push_back(line);
  std::vector<uint32_t> order;
  for (uint32_t id = 0; id < names.size(); ++id) {
    if (counts[id] >= kMinCount) order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  corpus.word.assign(names.size(), -1);
  for (uint32_t rank = 0; rank < order.size(); ++rank) {
    corpus.word[order[rank]] = static_cast<int32_t>(rank);
    corpus.count.push_back(counts[order[rank]]);
    corpus.text.emplace_back(names[order[rank]]);
    corpus.tokens += counts[order[rank]];
  }
  for (std::string_view name : names) corpus.slot.push_back(fnv(name) % kHashSlots);
  return corpus;
}

// Rows of the input matrix that make up a word: its own and its subwords'.
std::vector<uint32_t> subwordRows(const std::string& word, uint32_t rank, uint32_t words) {
  std::vector<uint32_t> rows{rank};
  if (word == "</s>") return rows;
  const std::string marked = "<" + word + ">";
  for (size_t i = 0; i < marked.size(); ++i) {
    for (int n = kMinGram; n <= kMaxGram && i + static_cast<size_t>(n) <= marked.size(); ++n) {
      const std::string_view gram = std::string_view(marked).substr(i, static_cast<size_t>(n));
      rows.push_back(words + fnv(gram) % kBuckets);
    }
  }
  return rows;
}

// First page of each part; a part ends where the next begins.
struct FasttextLayout {
  uint64_t input, output, negatives, entries, subwords, end;
};

void touchRow(Trace& trace, uint64_t first_page, uint64_t row, uint32_t write) {
  const uint64_t begin = row * kRowBytes;
  for (uint64_t page = begin / kPage; page <= (begin + kRowBytes - 1) / kPage; ++page) {
    trace.accesses.push_back(static_cast<uint32_t>(first_page + page) | write);
  }
}

void sweep(Trace& trace, uint64_t first, uint64_t count, uint32_t write) {
  for (uint64_t i = 0; i < count; ++i) {
    trace.accesses.push_back(static_cast<uint32_t>(first + i) | write);
  }
}

class FasttextTraining {
 public:
  FasttextTraining(Trace& trace, const Corpus& corpus, const FasttextLayout& layout)
      : trace_(trace), corpus_(corpus), layout_(layout) {
    const auto words = static_cast<uint32_t>(corpus.count.size());
    double roots = 0;
    for (uint32_t count : corpus.count) roots += std::sqrt(static_cast<double>(count));
    for (uint32_t rank = 0; rank < words; ++rank) {
      rows_.push_back(subwordRows(corpus.text[rank], rank, words));
      const double share = corpus.count[rank] / static_cast<double>(corpus.tokens);
      keep_.push_back(std::sqrt(kSubsample / share) + kSubsample / share);
      // Each word has a stretch of the table in proportion to the square root of its count.
      const double root = std::sqrt(static_cast<double>(corpus.count[rank]));
      negatives_.insert(negatives_.end(), static_cast<size_t>(root * kNegativeTable / roots) + 1,
                        rank);
    }
  }

  // The loss object fills its table of negatives just before training.
  void fillNegatives() {
    sweep(trace_, layout_.negatives, layout_.entries - layout_.negatives, kWriteBit);
  }

  // One line: every token, rare ones too, is looked up in the hash table; the word there is
  // compared; then the kept words are trained.
  void line(const std::vector<uint32_t>& tokens) {
    std::vector<uint32_t> kept;
    for (uint32_t token : tokens) {
      trace_.read(uint64_t{corpus_.slot[token]} * 4 / kPage);
      if (corpus_.word[token] < 0) continue;
      const auto word = static_cast<uint32_t>(corpus_.word[token]);
      readEntry(word);
      if (uniform_(random_) <= keep_[word]) kept.push_back(word);
    }
    for (size_t i = 0; i < kept.size(); ++i) trainWord(kept, i);
  }

  void saveVectors() {
    for (uint32_t word = 0; word < rows_.size(); ++word) {
      trace_.read(fnv(corpus_.text[word]) % kHashSlots * uint64_t{4} / kPage);
      readEntry(word);
      readSubwords(word);
      for (uint32_t row : rows_[word]) touchRow(trace_, layout_.input, row, 0);
    }
  }

 private:
  void readEntry(uint64_t word) { trace_.read(layout_.entries + word * kEntryBytes / kPage); }
  void readSubwords(uint64_t word) {
    trace_.read(layout_.subwords + word * kSubwordsBytes / kPage);
  }

  // The word's rows are read and written once per context word, within microseconds: one access
  // each here. Negatives are drawn at random places of their table, five per context word; the
  // output row of one of them is kept in the trace, since the output matrix is small and hot.
  void trainWord(const std::vector<uint32_t>& kept, size_t i) {
    readSubwords(kept[i]);
    const size_t reach = 1 + random_() % kWindow;
    bool first = true;
    for (size_t c = i > reach ? i - reach : 0; c <= i + reach && c < kept.size(); ++c) {
      if (c == i) continue;
      if (std::exchange(first, false)) {
        for (uint32_t row : rows_[kept[i]]) touchRow(trace_, layout_.input, row, kWriteBit);
      }
      touchRow(trace_, layout_.output, kept[c], kWriteBit);
      size_t drawn = 0;
      for (int n = 0; n < kNegatives; ++n) {
        drawn = std::uniform_int_distribution<size_t>(0, negatives_.size() - 1)(random_);
        trace_.read(layout_.negatives + drawn * 4 / kPage);
      }
      touchRow(trace_, layout_.output, negatives_[drawn], kWriteBit);
    }
  }

  Trace& trace_;
  const Corpus& corpus_;
  const FasttextLayout layout_;
  std::vector<std::vector<uint32_t>> rows_;
  std::vector<double> keep_;
  std::vector<uint32_t> negatives_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  std::mt19937_64 random_{0};
};

FasttextLayout layOut(uint64_t words) {
  const auto pages = [](uint64_t bytes) { return bytes / kPage + 1; };
  FasttextLayout layout;
  layout.input = pages(uint64_t{kHashSlots} * 4);
  layout.output = layout.input + pages((words + kBuckets) * kRowBytes);
  layout.negatives = layout.output + pages(words * kRowBytes);
  // Rounding up adds an entry a word.
  layout.entries = layout.negatives + pages((static_cast<uint64_t>(kNegativeTable) + words) * 4);
  layout.subwords = layout.entries + pages(words * kEntryBytes);
  layout.end = layout.subwords + pages(words * kSubwordsBytes);
  return layout;
}

// ---- Zipf ----

// Draws ranks 0..n-1 with weight 1 / (rank + 1)^skew, by inverting the cumulative sum.
class Zipf {
 public:
  Zipf(uint32_t n, double skew) : cumulative_(n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) cumulative_[i] = sum += 1 / std::pow(i + 1.0, skew);
  }
  uint32_t operator()(std::mt19937_64& random) const {
    const double at = std::uniform_real_distribution<double>(0, cumulative_.back())(random);
    return static_cast<uint32_t>(std::lower_bound(cumulative_.begin(), cumulative_.end(), at) -
                                 cumulative_.begin());
  }

 private:
  std::vector<double> cumulative_;
};

Trace zipfTables(uint64_t seed, const char* name, uint32_t write) {
  constexpr uint32_t kTables = 8, kRows = 500'000, kBatch = 2048, kBatches = 250;
  constexpr uint64_t kPagesPerTable = uint64_t{kRows} * 256 / kPage;
  Trace trace{.name = name};
  trace.pages = static_cast<uint32_t>(kPagesPerTable * kTables);
  trace.phase("init", 1000);
  sweep(trace, 0, trace.pages, kWriteBit);
  trace.measured = 1;
  trace.phase("train", 1200);
  const Zipf zipf(kRows, 1.05);
  std::mt19937_64 random(seed);
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    for (uint32_t table = 0; table < kTables; ++table) {
      for (uint32_t i = 0; i < kBatch; ++i) {
        const uint64_t rank = zipf(random);
        // A multiplier coprime to kRows scatters ranks over the table, as hashed ids are.
        const uint64_t row = (rank * 2654435761u + table * 7919u) % kRows;
        trace.accesses.push_back(static_cast<uint32_t>(table * kPagesPerTable + row * 256 / kPage) |
                                 write);
      }
    }
  }
  return trace;
}

/// All pages written once, in order; what follows is measured.
Trace filled(const char* name, uint32_t pages, const char* measured) {
  Trace trace{.name = name, .pages = pages};
  trace.phase("init", 1000);
  sweep(trace, 0, pages, kWriteBit);
  trace.measured = 1;
  trace.phase(measured, 1000);
  return trace;
}

}  // namespace

Trace fasttextTrace(const std::string& text) {
  const Corpus corpus = readCorpus(text);
  const FasttextLayout layout = layOut(corpus.count.size());
  Trace trace{.name = "fasttext", .pages = static_cast<uint32_t>(layout.end)};
  trace.regions = {{"word2int", 0},
                   {"input", layout.input},
                   {"output", layout.output},
                   {"negatives", layout.negatives},
                   {"words", layout.entries}};
  FasttextTraining training(trace, corpus, layout);

  trace.phase("dictionary", 400);
  sweep(trace, 0, layout.input, kWriteBit);
  for (const auto& line : corpus.lines) {
    for (uint32_t token : line) trace.write(uint64_t{corpus.slot[token]} * 4 / kPage);
  }
  sweep(trace, 0, layout.input, kWriteBit);  // emptied and filled again without the rare words
  for (uint32_t token = 0; token < corpus.slot.size(); ++token) {
    if (corpus.word[token] >= 0) trace.write(uint64_t{corpus.slot[token]} * 4 / kPage);
  }
  sweep(trace, layout.entries, layout.end - layout.entries, kWriteBit);
  trace.phase("init", 2500);  // zeroed by the vector, then filled with uniform numbers
  sweep(trace, layout.input, layout.output - layout.input, kWriteBit);
  sweep(trace, layout.input, layout.output - layout.input, kWriteBit);
  sweep(trace, layout.output, layout.negatives - layout.output, kWriteBit);
  training.fillNegatives();
  trace.measured = trace.phases.size();
  trace.phase("train", 0);
  const size_t begin = trace.accesses.size();
  for (const auto& line : corpus.lines) training.line(line);
  trace.phases.back().ns_per_access = 12e9 / static_cast<double>(trace.accesses.size() - begin);
  trace.phase("save", 4000);
  sweep(trace, layout.entries, layout.subwords - layout.entries, 0);
  sweep(trace, layout.input, layout.negatives - layout.input, 0);
  trace.phase("vectors", 500);
  training.saveVectors();
  return trace;
}

Trace embeddingTrace(uint64_t seed) { return zipfTables(seed, "zipf-train", kWriteBit); }
Trace inferenceTrace(uint64_t seed) { return zipfTables(seed, "zipf-read", 0); }

Trace gupsTrace(uint64_t seed) {
  constexpr uint32_t kPages = 131072;  // 512 MiB
  Trace trace{.name = "gups-shift", .pages = kPages};
  trace.phase("init", 1000);
  sweep(trace, 0, kPages, kWriteBit);
  std::mt19937_64 random(seed);
  std::vector<uint32_t> order(kPages);
  std::iota(order.begin(), order.end(), 0u);
  trace.measured = 1;
  for (const char* half : {"first", "second"}) {
    trace.phase(half, 1000);
    std::shuffle(order.begin(), order.end(), random);
    for (uint32_t i = 0; i < 3'000'000; ++i) {
      const uint32_t range = random() % 10 ? kPages / 10 : kPages;
      trace.write(order[random() % range]);
    }
  }
  return trace;
}

Trace scanTrace() {
  constexpr uint32_t kPages = 100'000;
  Trace trace = filled("scan", kPages, "scans");
  for (int pass = 0; pass < 6; ++pass) sweep(trace, 0, kPages, 0);
  return trace;
}

Trace descentTrace(uint64_t seed) {
  constexpr uint32_t kPages = 150'000, kTable = 30'000;
  Trace trace = filled("descent", kPages, "descents");
  std::mt19937_64 random(seed);
  for (int pass = 0; pass < 4; ++pass) {
    for (uint64_t page = kPages; page-- > kTable;) {
      trace.read(page);
      trace.read(random() % kTable);
    }
  }
  return trace;
}

Trace mergeSortTrace(uint64_t seed) {
  constexpr uint32_t kLines = 1 << 20, kLinesPerPage = 128, kTextPages = kLines / 100;
  constexpr uint32_t kArrayPages = kLines / kLinesPerPage, kLevels = 5;
  Trace trace = filled("merge-sort", kTextPages + 2 * kArrayPages, "merges");
  trace.phases.back().ns_per_access = 300;
  trace.regions = {{"text", 0}, {"lines", kTextPages}};
  std::mt19937_64 random(seed);
  const auto line = [&](uint32_t array, uint32_t index, uint32_t write) {
    const uint32_t page = kArrayPages - 1 - index / kLinesPerPage;
    trace.accesses.push_back((kTextPages + array * kArrayPages + page) | write);
  };
  for (uint32_t level = 1; level <= kLevels; ++level) {
    const uint32_t half = kLines >> (kLevels - level + 1);
    for (uint32_t run = 0; run < kLines; run += 2 * half) {
      for (uint32_t i = 0; i < 2 * half; ++i) {
        // Which of the two comes next is anybody's guess: they take turns.
        const uint32_t from = run + i % 2 * half;
        line(level % 2, from + i / 2, 0);
        trace.read((from + random() % half) / 100 % kTextPages);
        line(1 - level % 2, run + i, kWriteBit);
      }
    }
  }
  return trace;
}

Trace scanAndHotTrace(uint64_t seed) {
  constexpr uint32_t kPages = 150'000, kHot = 24'000;
  Trace trace = filled("scan+hot", kPages, "mixed");
  std::mt19937_64 random(seed);
  uint64_t cursor = 0;
  for (uint32_t i = 0; i < 4'000'000; ++i) {
    if (i % 8 == 0) {
      trace.read(kHot + cursor);
      cursor = (cursor + 1) % (kPages - kHot);
    } else {
      trace.write(random() % kHot);
    }
  }
  return trace;
}

}  // namespace tidepool::bench
