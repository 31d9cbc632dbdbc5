#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first process of a machine: file systems, modules, network, then the test's script. Its output, exit status and
# whatever it puts into /results go to the raw disk as a tar archive; then the machine is switched off.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
# shellcheck source=/dev/null
. /etc/environment.sh
while read -r module; do
  insmod "/lib/modules/$module.ko" || echo "init: cannot load $module"
done </etc/modules
# The line to the host stays open: a line that comes when nobody has it open is lost.
exec 9<>/dev/ttyS1
stty raw -echo <&9
exec 8<>/dev/ttyS2
stty raw -echo <&8
if [ -d /sys/class/net/eth0 ]; then
  ip link set eth0 up
  ip addr add "10.9.0.$((MACHINE + 1))/24" dev eth0
fi
ip link set lo up
echo begin >&9
read -r _ <&9
# What follows is on the console, for the log, and in the results.
(
  cd /root && sh -eu -c '. /lib/guest/test.sh; . /test.sh'
  echo $? >/results/status
) 2>&1 | while IFS= read -r line; do
  echo "$line"
  echo "$line" >>/results/output.txt
done
dmesg >/results/dmesg.txt
tar -cf /dev/vda -C /results .
sync
poweroff -f
