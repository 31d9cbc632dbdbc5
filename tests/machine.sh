#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make check` needs of the machine, asked before anything is installed or built: one line each, "ok" or
# "missing: what to do". Ends with 1 if the tests cannot run here at all. What only some tests need is no failure:
# those tests are named, with the reason, and tests/check.sh leaves them out and counts them.
#   tests/machine.sh              for people
#   tests/machine.sh --left-out   only the tests to leave out: one "TEST REASON" a line
# A bare Debian has all it uses: bash, coreutils, util-linux, perl-base.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
missing=0
report=
left_out=
say() { report+=$(printf '  %-8s %s' "$1" "$2")$'\n'; }
ok() { say ok "$1"; }
lack() { say missing "$1: $2"; missing=1; }   # WHAT WHAT-TO-DO
without() {  # WHAT WHAT-TO-DO REASON TEST...
  say "without" "$1: $2"
  local reason=$3
  shift 3
  local test
  for test; do left_out+="$test $reason"$'\n'; done
}

# What is mounted on "/" as this process sees it; empty where its root is an ordinary folder.
root_mount() { awk '$5 == "/"' /proc/self/mountinfo 2>/dev/null; }

where() {
  local kind=machine
  if [[ -e /.dockerenv || -e /run/.containerenv || -n ${container-} ]]; then
    kind=container
  elif command -v systemd-detect-virt >/dev/null && systemd-detect-virt --quiet --container; then
    kind="container ($(systemd-detect-virt --container))"
  fi
  [[ -r /proc/self/mountinfo && -z $(root_mount) ]] && kind="chroot in a $kind"
  echo "$kind, kernel $(uname -r), $(nproc) processors"
}

check_folders() {
  local folder
  for folder in /proc/self /sys/kernel /dev/null /dev/shm; do
    [[ -e $folder ]] || { lack "$folder" "mount /proc, /sys, /dev and /dev/shm here"; return; }
  done
  ok "/proc, /sys, /dev and /dev/shm are here"
}

check_root() {
  if (($(id -u) == 0)) && [[ $(awk '{print $1, $2, $3; exit}' /proc/self/uid_map 2>/dev/null) != "0 0 4294967295" ]]; then
    without "root of the machine" "this root is of a user namespace: run it outside" "root of a user namespace only" \
      cli_errors_test stats_stats_region_test packaging_deb packaging_machine program_unchanged program_fabric_tour \
      fabricmgr_histories
  elif (($(id -u) == 0)); then
    ok "root"
  elif command -v sudo >/dev/null; then
    without "root" "sudo installs packages; run all of it as root for the tests that become other users" "needs root" \
      cli_errors_test stats_stats_region_test packaging_machine program_fabric_tour fabricmgr_histories
  else
    lack "root or sudo" "run as root, or install sudo"
  fi
}

check_namespaces() {
  local need_mounts=(packaging_deb packaging_machine cxl_libcxl_test program_unchanged program_fabric_tour
                     fabricmgr_histories)
  if [[ -r /proc/self/mountinfo && -z $(root_mount) ]]; then
    without "a root directory that is a mount point" \
      "outside, before chroot: mount --bind FOLDER FOLDER, then chroot FOLDER" "its root directory is no mount point" \
      "${need_mounts[@]}"
  elif ! { unshare --mount true || unshare --user --map-root-user --mount true; } 2>/dev/null; then
    without "mount namespaces" "a container needs CAP_SYS_ADMIN (docker run --privileged)" "no mount namespaces here" \
      "${need_mounts[@]}"
  else
    ok "mount namespaces, and a root directory that is a mount point"
    if ! unshare --user --map-root-user true 2>/dev/null; then
      without "user namespaces" "sysctl user.max_user_namespaces; none in a chroot" "no user namespaces here" \
        program_unchanged
    else
      ok "user namespaces"
    fi
  fi
}

check_userfaultfd() {
  local device=
  [[ -r /dev/userfaultfd && -w /dev/userfaultfd ]] && device=yes
  # The system call, with all of its rights: 323 on x86-64, O_CLOEXEC.
  if [[ -n $device ]] || perl -e 'exit(syscall(323, 02000000) < 0)' 2>/dev/null; then
    ok "userfaultfd"
  else
    lack "userfaultfd" "run as root, or sysctl -w vm.unprivileged_userfaultfd=1; in a container, let its seccomp profile pass it"
  fi
  local release
  release=$(uname -r)
  if printf '6.8\n%s\n' "${release%%-*}" | sort -V -C; then
    ok "kernel 6.8 or newer"
  else
    lack "kernel 6.8 or newer" "this is $release: tests of promotion and of eviction by moving pages would fail"
  fi
}

# perf_event_open, 298 on x86-64, for the faults of this thread with its registers, as FaultRing has it: the fields of
# struct perf_event_attr up to its version 5.
check_perf_events() {
  if perl -e '
      my $attr = pack("L2 Q5 L2 Q4 L2 Q L S2", 1, 112, 2, 1, 0x100b, 0, 1 << 5 | 1 << 6 | 1 << 27, 0, 0,
                      0, 0, 0, 0xff00ff, 0, 0, 0, 0, 0, 0);
      exit(syscall(298, $attr, 0, -1, -1, 8) < 0)' 2>/dev/null; then
    ok "perf events"
  else
    without "perf events" "run as root, or sysctl -w kernel.perf_event_paranoid=2; in a container, let its seccomp profile \
pass perf_event_open; only x86-64 has those that are used" "no samples of page faults here" \
      os_fault_ring_test migrate_foretell_test
  fi
}

check_room() {
  local free_mib built=0 wanted=6144 memory_mib limit
  [[ -d build ]] && built=$(du -sm build | cut -f1)
  wanted=$((built < wanted ? wanted - built : 1024))
  free_mib=$(df -Pm . | awk 'NR == 2 {print $4}')
  if ((free_mib >= wanted)); then
    ok "disk: $((free_mib / 1024)) GiB free, wanted $(((wanted + 1023) / 1024))"
  else
    lack "disk" "$free_mib MiB free in $PWD, wanted $wanted"
  fi
  memory_mib=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo 2>/dev/null)
  for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    limit=$(cat "$limit" 2>/dev/null)
    [[ $limit =~ ^[0-9]{1,15}$ ]] && ((limit >> 20 < memory_mib)) && memory_mib=$((limit >> 20))
  done
  if ((${memory_mib:-0} >= 6144)); then
    ok "memory: $((memory_mib / 1024)) GiB available, wanted 6"
  else
    lack "memory" "${memory_mib:-0} MiB available, wanted 6144; JOBS=1 takes less for building"
  fi
}

check_debian() {
  if [[ -r /etc/debian_version ]] && [[ $(</etc/debian_version) == 12* ]]; then
    ok "Debian 12"
  elif [[ ${DEPS:-yes} == no ]]; then
    ok "no Debian 12, but DEPS=no: the packages are yours to see to"
  else
    lack "Debian 12" "install the equivalents of packaging/deps/*.txt, then make check DEPS=no"
  fi
}

check_folders
check_debian
check_root
check_namespaces
check_userfaultfd
check_perf_events
check_room
left_out=$(printf '%s' "$left_out" | sort -u -k1,1)
if [[ ${1-} == --left-out ]]; then
  [[ -z $left_out ]] || printf '%s\n' "$left_out"
  exit 0
fi
printf '== this machine: %s\n%s' "$(where)" "$report"
if [[ -n $left_out ]]; then
  printf '%s\n' "$left_out" | while read -r test reason; do
    printf '  %-8s %s: %s\n' "leave out" "$test" "$reason"
  done
fi
if ((missing)); then
  echo "check: this machine lacks what is marked 'missing'; nothing was built" >&2
  exit 1
fi
