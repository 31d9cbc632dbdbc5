// SPDX-License-Identifier: Apache-2.0
// A C++ program: exceptions through several frames, iostreams, containers, aligned new, bad_alloc
// and thread_local objects with destructors that allocate. Same output with and without the
// preload.
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct alignas(256) Wide {
  char bytes[300];
};

struct Noisy {
  std::string text = std::string(1000, 'n');
  ~Noisy() { text += std::string(100000, 'm'); }
};
thread_local Noisy noisy;

int depth(int levels) {
  std::string local(static_cast<size_t>(levels) * 10 + 1, 'x');
  if (levels == 0) throw std::runtime_error("bottom reached");
  return depth(levels - 1) + static_cast<int>(local.size());
}

bool refusesAbsurdSize() {
  volatile size_t absurd = SIZE_MAX / 4;
  try {
    std::unique_ptr<char[]> block(new char[absurd]);
    return block == nullptr;
  } catch (const std::bad_alloc&) {
    return new (std::nothrow) char[absurd] == nullptr;
  }
}

}  // namespace

int main() {
  int caught = 0;
  for (int i = 0; i < 1000; ++i) {
    try {
      depth(20);
    } catch (const std::exception& error) {
      caught += std::string(error.what()) == "bottom reached";
    }
  }
  std::map<int, std::string> words;
  for (int i = 0; i < 20000; ++i) words[i * 7919 % 20011] = std::to_string(i);
  std::ostringstream stream;
  for (const auto& [key, word] : words) stream << key << word;
  bool aligned = true;
  for (int i = 0; i < 100; ++i) {
    auto wide = std::make_unique<Wide>();
    aligned = aligned && reinterpret_cast<uintptr_t>(wide.get()) % 256 == 0;
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      noisy.text += 'x';
      try {
        depth(5);
      } catch (const std::runtime_error&) {
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<int> grown;
  for (int i = 0; i < 20'000'000; ++i) grown.push_back(i);  // through every size, up to huge
  std::cout << caught << ' ' << stream.str().size() << ' ' << aligned << ' ' << refusesAbsurdSize()
            << ' ' << grown[19'999'999] << ' ' << noisy.text.size() << std::endl;
  return caught == 1000 && aligned ? 0 : 1;
}
