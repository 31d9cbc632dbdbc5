# SPDX-License-Identifier: Apache-2.0
# The front door. CMake does the building (see CMakePresets.json); this file names the jobs.
#   JOBS=N      how many compilers at once (all CPUs by default)
#   DEPS=no     never install packages
#   PREFIX=DIR  where `make install` puts things (/usr/local); DESTDIR=DIR goes before it
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
DESTDIR ?=
DEPS ?= yes
FUZZ_SECONDS ?= 60
ROUNDS ?= 5
RELEASE := build/release
export JOBS DEPS

.DEFAULT_GOAL := build
.PHONY: build configure deps-% demo check sanitize fuzz mutate lint bench soak unchanged gpu-check leaks vm-setup vm-check vm-short install deb tidy clean help

help:
	@echo "make          build release into $(RELEASE) (bin/, lib/)"
	@echo "make demo     install what it needs, then train fasttext in a quarter of its memory"
	@echo "make check    say what the machine lacks; install what it needs, build, run every test, then under sanitizers"
	@echo "make bench    all measurements, paired with their peers (ROUNDS=$(ROUNDS)); about an hour"
	@echo "              one of them alone: bench/run fasttext|torch|gups|malloc|faults|rows-wire|tables|tensors|fits|fabric|fabric-api"
	@echo "make sanitize the unit tests under ASan+UBSan, then TSan; a check runs the fabric manager's under both, a quarter of the others"
	@echo "make fuzz     made-up bytes to everything that reads what others sent or wrote, $(FUZZ_SECONDS) seconds each"
	@echo "              (FUZZ_SECONDS=N for another length)"
	@echo "make mutate   whether the unit tests of the six hardest classes notice a changed line; about an hour"
	@echo "              (SAMPLE=N: only N changes of each class)"
	@echo "make soak     hammer 1 GiB of checked pages through 256 MiB, 10 minutes for each kind of far"
	@echo "              memory (TIDEPOOL_SOAK_SECONDS=N for another length), and the long forms of other tests"
	@echo "make unchanged  run Debian's programs as their users would, php to PostgreSQL to Chromium, beside plain"
	@echo "              (it installs them first; some ten minutes)"
	@echo "make gpu-check  run programs that share memory with a CUDA device, beside plain; needs such a device,"
	@echo "              and PyTorch for CUDA (PYTHON=the interpreter that has it)"
	@echo "make leaks    100,000 steps each of tables that come and go and of tables that stay, with everything"
	@echo "              counted that could leak (TIDEPOOL_LEAK_STEPS=N for another number)"
	@echo "make vm-check boot virtual machines, test against the kernel's own CXL, NUMA and RDMA drivers; some fifteen"
	@echo "              minutes (make vm-setup: only download QEMU and a kernel into build/vm)"
	@echo "make vm-short the same in less time: daemons are killed at a share of their steps, not at each"
	@echo "make install  into \$$(DESTDIR)\$$(PREFIX) [$(DESTDIR)$(PREFIX)]"
	@echo "make deb      Debian packages of it, into $(RELEASE)/deb"
	@echo "make lint     what can be said of the sources without building them; part of make check"
	@echo "make tidy     clang-tidy over the product's sources; some twenty minutes of processor time"
	@echo "make clean    remove build/"

# `deps-build-demo` installs the lists build.txt and demo.txt of packaging/deps.
deps-%:
ifneq ($(DEPS),no)
	@packaging/install-deps.sh $(subst -, ,$*)
else
	@:
endif

# CMake itself is run on every build: it is quick when nothing has changed, and it picks up new files.
build:
ifneq ($(DEPS),no)
	@packaging/install-deps.sh --check build || echo "make: going on; the build may fail" >&2
endif
	@mkdir -p build
	@cmake --preset release $(if $(CMAKE_ARGS),$(CMAKE_ARGS),-DTIDEPOOL_TESTS=OFF) >build/release-configure.log 2>&1 || \
	  { cat build/release-configure.log; exit 1; }
	@cmake --build --preset release -j$(JOBS)

demo: deps-build-demo
	@$(MAKE) --no-print-directory build DEPS=no CMAKE_ARGS=-DTIDEPOOL_TESTS=OFF
	@bench/demo

# What the machine lacks is said before anything is installed or built.
check:
	@tests/machine.sh
	@$(MAKE) --no-print-directory deps-build-check
	@tests/check.sh

sanitize: deps-build-check
	@TIDEPOOL_CHECK=sanitize tests/check.sh

fuzz: deps-build-check
	@mkdir -p build
	@cmake --preset asan-ubsan -DTIDEPOOL_TESTS=ON >build/asan-ubsan-configure.log 2>&1 || \
	  { cat build/asan-ubsan-configure.log; exit 1; }
	@cmake --build --preset asan-ubsan -j$(JOBS) --target fuzzers
	@set -e; for program in build/asan-ubsan/bin/fuzz_*; do \
	  echo "== $$program"; tests/fuzz/run.sh seconds $(FUZZ_SECONDS) $$program; done

mutate: deps-build-check
	@$(MAKE) --no-print-directory build DEPS=no CMAKE_ARGS=-DTIDEPOOL_TESTS=ON
	@tests/mutation/mutate.py --least 85 --jobs $(JOBS) $(if $(SAMPLE),--sample $(SAMPLE)) --json $(RELEASE)/mutants.json

bench: deps-build-demo-bench
	@$(MAKE) --no-print-directory build DEPS=no CMAKE_ARGS="-DTIDEPOOL_TESTS=OFF -DTIDEPOOL_BENCH=ON"
	@bench/run all --rounds $(ROUNDS)

soak: deps-build-check
	@$(MAKE) --no-print-directory build DEPS=no CMAKE_ARGS=-DTIDEPOOL_TESTS=ON
	@TIDEPOOL_SOAK_SECONDS=$${TIDEPOOL_SOAK_SECONDS:-600} ctest --test-dir $(RELEASE) -L soak \
	  --output-on-failure --no-tests=error --verbose

gpu-check: build
	@tests/gpu/run.py --bin $(RELEASE)/bin --python "$${PYTHON:-python3}"

unchanged: deps-build-unchanged
	@$(MAKE) --no-print-directory build DEPS=no CMAKE_ARGS=-DTIDEPOOL_TESTS=OFF
	@tests/programs/unchanged.py --bin $(RELEASE)/bin

leaks: deps-build-check
	@$(MAKE) --no-print-directory build DEPS=no CMAKE_ARGS=-DTIDEPOOL_TESTS=ON
	@TIDEPOOL_LEAK_STEPS=$${TIDEPOOL_LEAK_STEPS:-100000} $(RELEASE)/bin/checkpoint_leak_test

vm-setup:
	@tests/vm/run --setup

# Some of the unit tests are run in the machines, too.
vm-short: VM_FORM := --short
vm-check vm-short: deps-build-demo-check
	@mkdir -p build
	@cmake --preset release -DTIDEPOOL_TESTS=ON -DTIDEPOOL_BENCH=ON >build/release-configure.log 2>&1 || \
	  { cat build/release-configure.log; exit 1; }
	@cmake --build --preset release -j$(JOBS) --target vm_programs
	@tests/vm/run $(VM_FORM)

install:
	@test -d $(RELEASE)/bin || { echo "make: nothing is built yet; run 'make' first" >&2; exit 1; }
	DESTDIR="$(DESTDIR)" cmake --install $(RELEASE) --prefix "$(PREFIX)"

deb: deps-build-deb
	@$(MAKE) --no-print-directory build DEPS=no
	@packaging/make-deb.sh $(RELEASE)

lint: deps-check
	@tests/lint/lint.sh

tidy: deps-build-check
	@mkdir -p build
	@cmake --preset tidy >build/tidy-configure.log 2>&1 || { cat build/tidy-configure.log; exit 1; }
	@tests/lint/lint.sh tidy

clean:
	rm -rf build
