# SPDX-License-Identifier: Apache-2.0
# Sourced by tests with a fabric manager: it runs in machine 0, with an agent for node0; machine 1 has an agent for node1.

# The machine ends when nobody has its script's output open any more.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

lab() {
  mkdir -p /run/tidepool /root/lab/pki
  cd /root/lab
}

# lab_files CONFIG-LINE...: the manager's configuration, and certificates for machine 1 at port 8000.
lab_files() {
  lab
  fabricmgr ca init --dir ca >/dev/null
  fabricmgr ca issue server manager --host 10.9.0.1 --dir ca --out pki >/dev/null
  fabricmgr ca issue host node1 --dir ca --out pki >/dev/null
  cp ca/ca.crt pki
  {
    echo 'state = "/root/lab/fabric.db"'
    for line in "$@"; do echo "$line"; done
    echo '[unix]'
    echo 'path = "/root/lab/fabric.sock"'
    echo '[tcp]'
    echo 'listen = "0.0.0.0:7780"'
    for name in certificate:manager.crt key:manager.key ca:ca.crt; do
      echo "${name%%:*} = \"/root/lab/pki/${name#*:}\""
    done
  } >fabric.toml
  fabricmgr init --config fabric.toml >/dev/null
  export TIDEPOOL_FABRIC=unix:/root/lab/fabric.sock
  httpd -p 8000 -h /root/lab/pki
}

# lab_manager CONFIG-LINE...: lab_files, and the manager.
lab_manager() {
  lab_files "$@"
  fabricmgr serve --config fabric.toml &
  wait_for 30 eval "fabricmgr status >/dev/null 2>&1"
}

# lab_host: what machine 1 needs to speak to the manager.
lab_host() {
  lab
  for file in ca.crt node1.crt node1.key; do
    wait_for 30 wget -q -O $file http://10.9.0.1:8000/$file
  done
  chmod 600 node1.key
  export TIDEPOOL_FABRIC=https://10.9.0.1:7780 TIDEPOOL_FABRIC_CA=ca.crt TIDEPOOL_FABRIC_CERT=node1.crt
  export TIDEPOOL_FABRIC_KEY=node1.key
}

lab_agent() {
  fabricmgr agent --host "node$MACHINE" &
  wait_for 30 agent_has '"manager":"member"'
}
agent_has() { fabricmgr agent --status --json 2>/dev/null | grep -q "$1"; }

region_list_has() { fabricmgr region list --json 2>/dev/null | grep -q "$1"; }
region_id() { fabricmgr region list --host "$1" --json | sed 's/.*"id":\([0-9]*\).*/\1/'; }
# region_is_there ID: the manager knows it, or cannot be asked.
region_is_there() { ! fabricmgr region list --json >/tmp/list || grep -q "\"id\":$1," /tmp/list; }
# uses PID N: the program has pages in N regions that are used in place; /tmp/stat has its statistics.
uses() {
  tidepool stat $1 --json >/tmp/stat 2>/dev/null &&
    [ "$(tr -d '\n ' </tmp/stat | grep -o '"kind":"direct","used_bytes":[1-9]' | wc -l)" = "$2" ]
}
# freed TEXT: all regions are given back and erased.
freed() {
  wait_for 300 region_list_has '"items":\[\]'
  host say "$1"
}
# here: the agent has attached the region, and programs can map it.
here() { [ "$(cxl_state mem0)" = device ]; }
# nothing_here: no CXL device, no region, no DAX device.
nothing_here() { [ ! -e /dev/dax0.0 ] && [ "$(ls $CXL | grep -c -e region -e mem)" = 0 ]; }
