#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The life of the Debian packages on a system that may be spoilt (on_a_copy.sh): installed, used, changed,
# installed again, removed, purged.
#   deb_life.sh FOLDER-OF-DEBS SOURCE
set -euo pipefail
debs=$1 source=$2
say() { echo "-- $*"; }
must() { "$@" || { echo "failed: $*" >&2; exit 1; }; }
mustNot() { ! "$@" 2>/dev/null || { echo "should have failed: $*" >&2; exit 1; }; }
waitFor() { for _ in $(seq 200); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; must "$@"; }

say "install"
must dpkg -i "$debs"/*.deb
must id tidepool
must test -z "$(systemctl --root=/ list-unit-files 'tidepool-*' --state=enabled --no-legend)"
must test "$(stat -c '%U %a' /var/lib/tidepool /run/tidepool /run/tidepool/manager | tr '\n' ' ')" = \
  "tidepool 700 root 755 tidepool 755 "

say "units"
must systemd-analyze verify --man=no /lib/systemd/system/tidepool-{manager,memserver,agent}.service
for unit in manager memserver agent; do
  told=$(sed -n "s/^| \`tidepool-$unit\` | \([0-9.]*\) |$/\1/p" "$source/docs/operating.md")
  found=$(systemd-analyze security --offline=yes "tidepool-$unit.service" --no-pager |
          sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\).*/\1/p')
  must test "$unit ${found:-unknown}" = "$unit $told"
done

say "configuration"
must fabricmgr serve --check-config
must fabricmgr ca init --dir /etc/tidepool
must fabricmgr ca issue server manager --host localhost --dir /etc/tidepool
must fabricmgr ca issue manager orders --dir /etc/tidepool
must fabricmgr ca issue memserver server7 --dir /etc/tidepool
chown tidepool: /etc/tidepool/server7.key
# With every line that is commented out: keys are "#key =" and "#[section]", prose is "# ".
sed 's/^#\([^ ]\)/\1/' /etc/tidepool/fabricmgr.toml >/tmp/all.toml
must test "$(grep -c '^#[^ ]' /etc/tidepool/fabricmgr.toml)" -gt 15
must fabricmgr serve --check-config --config /tmp/all.toml

say "programs"
must tidepool run --dram 64M --far cxl:64M -- /bin/true
must env -u PYTHONDONTWRITEBYTECODE tidepool run --dram 64M --far cxl:64M -- /usr/bin/python3 -c pass
must test -d /usr/lib/tidepool/python/__pycache__
must fabricmgr init
must test "$(stat -c %U /var/lib/tidepool/fabric.db)" = tidepool
setpriv --reuid tidepool --regid tidepool --clear-groups fabricmgr serve &
waitFor fabricmgr status
# shellcheck disable=SC2046  # options, in words
setpriv --reuid tidepool --regid tidepool --clear-groups fabricmgr memserver $(sed -n 's/^#TIDEPOOL_MEMSERVER_OPTIONS=//p' /etc/tidepool/memserver.env |
  sed 's/192.0.2.7:777./127.0.0.1:0/g; s/64G/64M/') &
fabricmgr agent --host node1 &
waitFor fabricmgr agent --status
must fabricmgr host show node1
for command in tidepool fabricmgr; do
  must bash -n /usr/share/bash-completion/completions/$command
  must mandoc -T lint -W error <(zcat /usr/share/man/man1/$command.1.gz)
done
must pkg-config --cflags --libs tidepool tidepool-runtime
must test "$(readlink /usr/lib/libtidepool.so)" = libtidepool.so.0
kill %1 %2 %3
wait

say "install again: what was changed stays"
echo '# mine' >>/etc/tidepool/fabricmgr.toml
must dpkg -i "$debs"/*.deb
must grep -q '^# mine' /etc/tidepool/fabricmgr.toml

say "remove: configuration and state stay"
must dpkg -r tidepool libtidepool-dev libtidepool0
mustNot test -e /usr/bin/tidepool
mustNot test -e /usr/lib/tidepool
mustNot test -e /lib/systemd/system/tidepool-manager.service
must test -e /etc/tidepool/fabricmgr.toml
must test -e /var/lib/tidepool/fabric.db

say "purge: nothing stays but what somebody put there"
must dpkg -P tidepool libtidepool-dev libtidepool0
mustNot test -e /var/lib/tidepool
must test -e /etc/tidepool/ca.key
rm -r /etc/tidepool /tmp/all.toml
