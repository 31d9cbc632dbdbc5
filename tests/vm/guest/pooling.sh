# SPDX-License-Identifier: Apache-2.0
# Sourced by tests in which a daemon of machine 0 is killed at every step of a logical device's way: it is bound to node0,
# attached, used, drained, detached, sanitized, bound to node1 in the other machine, which reads zeros, and taken back.
. /lib/guest/fabric.sh
SIZE=268435456

# daemon NAME: how one of the two is started. In place of the shell, so that its process is the one that is known.
daemon() {
  case $1 in
    manager) exec fabricmgr serve --config fabric.toml ;;
    agent) exec fabricmgr agent --host node0 ;;
  esac
}

# killed NAME: the daemon is killed at every step that it takes for the first time, and started again; with STEP_SHARE only
# at that share of the steps and those in /tmp/always.
killed() {
  local status
  while [ ! -e /tmp/over ]; do
    status=0
    (
      export STEPS=/results/steps STEPS_PASSED=/results/passed STEPS_ALWAYS=/tmp/always
      export STEP_SHARE="${STEP_SHARE-}" STEP_FILES="${STEP_FILES-}" LD_PRELOAD=/usr/lib/kill_at_steps.so
      daemon $1
    ) >>/results/$1.log 2>&1 &
    echo $! >/tmp/$1.pid
    wait $! 2>/dev/null || status=$?
    [ $status = 137 ] || { echo "$1 ended with $status" >/tmp/over; tail -5 /results/$1.log; }
    echo >>/tmp/kills
    echo "$1: $(tail -n 1 /results/steps)"
  done
}
unkilled() {
  (daemon $1) >/results/$1.log 2>&1 &
  echo $! >/tmp/$1.pid
}

# again COMMAND...: until it succeeds; the manager may be away.
again() { wait_for 90 tried "$@"; }
tried() {
  [ ! -e /tmp/over ] || fail "$(cat /tmp/over)"
  "$@" >/tmp/said 2>&1
}
# once VERB...: a change that the manager is asked for until it has answered, and carries out once. If it undid it when it
# started again, as it says, that is its answer to this key for good.
keys=0
once() {
  keys=$((keys + 1))
  again asked "$@"
}
asked() {
  fabricmgr "$@" --idempotency-key "story-$keys" >/tmp/answer 2>&1 && return
  ! grep -q 'it was undone' /tmp/answer || keys=$((keys + 1))
  cat /tmp/answer
  return 1
}
# patiently COMMAND...: tries that take seconds each.
patiently() {
  for try in 1 2 3 4 5 6 7 8; do
    "$@" && return
    sleep 1
  done
  diff /tmp/left /tmp/again || diff /results/before /results/after
  fail "in vain: $*"
}
# known HOST: its region's number is in /tmp/region.
known() { region_id "$1" >/tmp/region && grep -qx '[0-9][0-9]*' /tmp/region; }
holds() { agent_has "\"held\":$1,"; }

# left: what is there of devices, regions, memory, files.
left() (
  exec 2>&1
  ls -A $CXL /sys/bus/dax/devices /sys/devices/system/node /run/tidepool /root/lab /dev/shm
  ls -d /sys/devices/system/memory/memory* | wc -l
  cat /proc/iomem /sys/devices/system/memory/auto_online_blocks
  grep MemTotal /proc/meminfo
  fabricmgr region list || exit 1
  fabricmgr device list || exit 1
  fabricmgr pool list || exit 1
  fabricmgr status | grep operations || exit 1
  for name in manager agent; do
    # Files that it has open; connections come and go.
    ls -l /proc/$(cat /tmp/$name.pid)/fd | sed -n 's/.* -> //p' | grep -v -e '^socket:' -e '^pipe:' | sort
  done
)
# settled FILE: what is left, when it does not change any more.
settled() {
  agent_has '"manager":"member"' && left >/tmp/left && left >/tmp/again && cmp -s /tmp/left /tmp/again && mv /tmp/left "$1"
}
as_before() {
  settled /results/after && cmp -s /results/before /results/after
}

# use_region: a program has its pages in the region; those are as it wrote them. One that asked an agent that was killed
# before it could answer does without: then the next one is taken.
use_region() {
  local program
  rm -f /tmp/filled /tmp/stop
  again agent_has '"manager":"member"'
  tidepool run --dram 8M --far fabric:256M --conf strict:true,compress:off,remote_timeout:60s -- checked_pages 16 /tmp/filled /tmp/stop >>/results/said 2>&1 9>&- &
  program=$!
  wait_for 120 filled_or_ended $program
  if [ ! -e /tmp/filled ]; then
    wait $program || echo "it ended with $?"
    return 1
  fi
  if ! uses $program 1; then
    touch /tmp/stop
    wait $program || fail "the program did not end well"
    return 1
  fi
  again holds 1
  host say "a program uses the region"
  # While nothing happens at all.
  kill -9 "$(cat /tmp/$1.pid)"
  again holds 1
  touch /tmp/stop
  wait $program || fail "the program did not end well: $(tail -3 /results/said)"
  again holds 0
  host say "the program has ended well"
}
filled_or_ended() { [ -e /tmp/filled ] || ! kill -0 "$1" 2>/dev/null; }

# story DAEMON: on machine 0.
story() {
  lab_files 'cxl_switch = "/lib/guest/cxl-switch.sh"'
  for name in manager agent; do
    if [ $name = $1 ]; then killed $name & else unkilled $name; fi
  done
  once pool add cxl --class cxl
  once device add ld0 --pool cxl --address cxl:0x5001 --granularity 256M
  host meet up
  host meet joined
  host say "the agent is a member, after $(wc -l </results/steps) kills"
  patiently settled /results/before

  once region assign --host node0 --size 256M
  again known node0
  wait_for 30 here
  again agent_has '"regions":1,'
  host say "attached, after $(wc -l </results/steps) kills"
  until use_region $1; do host say "once more"; done
  once region drain "$(cat /tmp/region)"
  wait_for 400 region_list_has '"items":\[\]'
  host say "drained, detached, sanitized, after $(wc -l </results/steps) kills"
  nothing_here || fail "something is left: $(ls $CXL)"

  once region assign --host node1 --size 256M
  host meet assigned
  host meet used
  again known node1
  once region drain "$(cat /tmp/region)"
  wait_for 400 region_list_has '"items":\[\]'
  host meet taken
  host say "node1 read zeros and gave it back, after $(wc -l </results/steps) kills"
  again fabricmgr audit verify
  patiently as_before
  cp /tmp/kills /results/kills
  touch /tmp/over
  kill -9 $(cat /tmp/manager.pid /tmp/agent.pid)
}

# other_host: on machine 1.
other_host() {
  host meet up
  lab_host
  lab_agent
  host meet joined
  host meet assigned
  wait_for 200 here
  device_bytes zero /dev/dax0.0 0 $SIZE || fail "the region is not empty"
  device_bytes fill /dev/dax0.0 0 $SIZE
  host meet used
  host meet taken
  nothing_here || fail "something is left: $(ls $CXL)"
}
