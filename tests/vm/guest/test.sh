# SPDX-License-Identifier: Apache-2.0
# Sourced by every test's script, under `set -eu`: asking the host, waiting for something, CXL regions through sysfs.

# host WORDS...: asks the host (see Test.answer in vmtest/runner.py); prints its answer, fails if that is an error.
host() {
  echo "$*" >&9
  read -r answer <&9
  case "$answer" in error*) echo "host $*: $answer"; return 1 ;; esac
}

fail() { echo "FAILED: $*"; exit 1; }

# hundredths: of a second since the machine was started, in $now.
hundredths() {
  read -r now _ </proc/uptime
  now=${now%.*}${now#*.}
}

# wait_for SECONDS COMMAND...: until it succeeds. Between two tries there is twice the time that one takes, since a program
# that asks all the time keeps the only processor from those that it waits for; but no more than two seconds, since one that
# takes long waits itself. SECONDS are those between tries.
wait_for() {
  local left=$(($1 * 100)) now began pause
  shift
  while hundredths && began=$now && ! "$@"; do
    hundredths
    pause=$((2 * (now - began)))
    [ $pause -gt 10 ] || pause=10
    [ $pause -lt 200 ] || pause=200
    left=$((left - pause))
    [ $left -gt 0 ] || fail "waited in vain for: $*"
    usleep $((pause * 10000))
  done
}

CXL=/sys/bus/cxl/devices

# endpoint_decoder MEMDEV: prints the first free decoder of a memory device (mem0): the kernel wants them in order.
endpoint_decoder() {
  local endpoint decoder
  for endpoint in $CXL/endpoint*; do
    [ "$(basename "$(readlink -f "$endpoint/uport")")" = "$1" ] || continue
    for decoder in "$endpoint"/decoder*; do
      [ "$(cat "$decoder/size" 2>/dev/null)" = 0x0 ] && { basename "$decoder"; return; }
    done
  done
  return 1
}

# create_region ROOT-DECODER MEMDEV SIZE: a region of that many bytes, one device wide; prints its name.
create_region() {
  local region decoder
  region=$(cat "$CXL/$1/create_ram_region")
  echo "$region" >"$CXL/$1/create_ram_region"
  decoder=$(endpoint_decoder "$2")
  echo 256 >"$CXL/$region/interleave_granularity"
  echo 1 >"$CXL/$region/interleave_ways"
  echo "$3" >"$CXL/$region/size"
  echo ram >"$CXL/$decoder/mode"
  echo "$3" >"$CXL/$decoder/dpa_size"
  echo "$decoder" >"$CXL/$region/target0"
  echo 1 >"$CXL/$region/commit"
  echo "$region" >/sys/bus/cxl/drivers/cxl_region/bind
  echo "$region"
}

# use_as_device DAX: /dev/DAX can be mapped by programs. What a CXL region is made of goes to the kernel's own memory
# (kmem) by default; device_dax takes it only when told to.
use_as_device() {
  echo "$1" >/sys/bus/dax/drivers/device_dax/new_id
  [ -e "/sys/bus/dax/devices/$1/driver" ] || echo "$1" >/sys/bus/dax/drivers/device_dax/bind
  [ "$(basename "$(readlink -f "/sys/bus/dax/devices/$1/driver")")" = device_dax ] || fail "$1 is not in device mode"
}

# train NAME PROGRAM...: fastText, one thread and so deterministic, with a table that does not fit a quarter of the
# machine; the model goes through a pipe, as there is no disk. Its digest is in /results/NAME.sum.
train() {
  local name=$1 digest
  shift
  mkfifo model.bin
  # Held open: fastText opens the file once before, to see whether it can.
  exec 3<>model.bin
  sha256sum <model.bin >"/results/$name.sum" 3>&- &
  digest=$!
  "$@" skipgram -input /text.txt -output model -dim 50 -bucket 200000 -epoch 1 -thread 1 -minCount 2 -verbose 0
  exec 3>&-
  wait $digest
  sha256sum <model.vec >>"/results/$name.sum"
  rm model.bin model.vec
  echo "$name: $(cut -c 1-16 "/results/$name.sum" | tr '\n' ' ')"
}

# soft_roce: RDMA by software on the link between the machines, as device rxe0.
soft_roce() {
  rdma link add rxe0 type rxe netdev eth0
  wait_for 10 test -e /dev/infiniband/rdma_cm
  wait_for 10 test -e /dev/infiniband/uverbs0
}

# lend SIZE: a memory server for the other machine, by TCP and by RDMA, with the process number $server; returns when it
# listens for both. What it says is in /results/lent.
lend() {
  rm -f /results/lent
  fabricmgr memserver --listen 10.9.0.1:7000 --size "$1" --transport verbs >/results/lent 2>&1 9>&- &
  server=$!
  wait_for 60 grep -q '^listening on' /results/lent
}

# rdma_packets: sent by rxe0 so far.
rdma_packets() {
  cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
}

node_has_memory() {
  [ -e "/sys/devices/system/node/node$1" ] && grep -q 'MemTotal: *[1-9]' "/sys/devices/system/node/node$1/meminfo"
}

# busybox as Debian builds it has no tee.
tee_to() {
  cat >"$1"
  cat "$1"
}

# watch_numa_maps PROGRAM: where its pages are, by the kernel and by its statistics, again and again until it ends; what
# stays is the last reading.
watch_numa_maps() {
  local pid
  wait_for 60 pidof "$1" >/dev/null
  pid=$(pidof "$1")
  while [ -e "/proc/$pid" ]; do
    if tidepool stat "$pid" --json >/tmp/live.json 2>/dev/null && cat "/proc/$pid/numa_maps" >/tmp/numa_maps; then
      [ -s /tmp/numa_maps ] && mv /tmp/live.json /tmp/numa_maps /results/
    fi
    sleep 2
  done
}

# series_of PROGRAM: its statistics every other second until it ends, a line each, in /results/series.
series_of() {
  local pid
  wait_for 60 pidof "$1" >/dev/null
  pid=$(pidof "$1")
  while [ -e "/proc/$pid" ]; do
    if tidepool stat "$pid" --json >/tmp/reading 2>/dev/null; then
      tr -d '\n' </tmp/reading >>/results/series
      echo >>/results/series
    fi
    sleep 2
  done
}

# cxl_state MEMDEV: how far a device is, in a word (see `fabricmgr cxl list`).
cxl_state() {
  fabricmgr cxl list --json | sed 's/.*"name":"'"$1"'","serial":"[^"]*","state":"\([a-z-]*\)".*/\1/'
}

# killed_at_every_write STATE UNDO COMMAND...: runs COMMAND, killed when it has written to the kernel's device files once,
# then twice, and so on until it gets through; after each, COMMAND without being killed has to succeed and to end in STATE.
# UNDO is run before each. With WRITES_STRIDE=4 WRITES_FIRST=2 it is killed after two writes, then six, and so on.
killed_at_every_write() {
  local state=$1 undo=$2 writes=${WRITES_FIRST:-1} kills=0 status
  shift 2
  while :; do
    eval "$undo" >/dev/null
    status=0
    KILL_AFTER_WRITES=$writes LD_PRELOAD=/usr/lib/kill_after_writes.so "$@" >/dev/null || status=$?
    [ $status = 0 ] || [ $status = 137 ] || fail "$* ended with $status, to be killed after $writes writes"
    "$@" >/dev/null || fail "$* does not go on after it was killed after $writes writes"
    [ "$(cxl_state mem0)" = "$state" ] || fail "$* ended in $(cxl_state mem0) after it was killed after $writes writes"
    if [ $status != 137 ]; then
      [ $kills = 0 ] && [ $writes -gt 1 ] || break
      writes=1 # once at least, few as its writes are
      continue
    fi
    kills=$((kills + 1))
    writes=$((writes + ${WRITES_STRIDE:-1}))
  done
  host say "$* was killed $kills times; it has fewer than $writes writes"
}
