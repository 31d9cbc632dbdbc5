#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Debian's programs as their users would, plain, behind a direct tier and behind a memory server, in 32 MiB
of local memory, and compares what they print and how they end.

  unchanged.py --bin DIR [--json] [NAME...]

Without names all are run. Each case is a shell script; it may use $WORK, an empty folder, and $PORT, a port that
nobody listens on. What a case leaves running is ended with it. Fails if a case differs, runs unmanaged (but for
UNMANAGED), or needs a program that is not there: packaging/deps/unchanged.txt lists what to install.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SECONDS = 240

C_MPI = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  int rank, n = 4000000;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), sum = 0;
  for (int i = 0; i < n; ++i) a[i] = i % 1000 + rank;
  for (int round = 0; round < 3; ++round) MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < n; ++i) sum += b[i];
  if (rank == 0) printf("%.0f\n", sum);
  MPI_Finalize();
  return 0;
}
"""
C_FORKS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  size_t n = 80 << 20, sum = 0;
  unsigned char* p = malloc(n);
  for (size_t i = 0; i < n; ++i) p[i] = i * 2654435761u >> 24;
  fflush(stdout);
  if (fork() == 0) {
    for (size_t i = 0; i < n; ++i) sum += p[i];
    printf("child %zu\n", sum);
    fflush(stdout);
    _exit(sum & 1);
  }
  int status;
  wait(&status);
  for (size_t i = 0; i < n; i += 4096) sum += p[i];
  printf("parent %zu %d\n", sum, WEXITSTATUS(status));
  return 0;
}
"""
OCAML = """
let () =
  let a = Array.init 3_000_000 (fun i -> string_of_int i) in
  let sum = Array.fold_left (fun s x -> s + String.length x) 0 a in
  Printf.printf "%d %s\\n" sum a.(1234567)
"""
APACHE = """
ServerRoot $WORK
PidFile $WORK/apache.pid
Listen 127.0.0.1:$PORT
ServerName localhost
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
LoadModule php_module /usr/lib/apache2/modules/libphp8.2.so
User www-data
Group www-data
DocumentRoot $WORK/www
ErrorLog $WORK/error.log
<Directory $WORK/www>
Require all granted
</Directory>
<FilesMatch "\\.php$">
SetHandler application/x-httpd-php
</FilesMatch>
"""
PHP_PAGE = "<?php $a = []; for ($i = 0; $i < 800000; $i++) $a[] = md5((string)$i); echo md5(implode(',', $a));"

# What may run unmanaged, and why.
UNMANAGED = {"bubblewrap": "inside, nobody has the right to userfaultfd"}

# name: (programs it needs, script, files to write into $WORK first)
CASES = {
    "perl": (["perl"], r"""perl -e '@b = map { $_ x 1000000 } 1..90; for $r (1..3) { substr($_, 5, 1) = "y" for @b }
        if (!fork) { print length(join "", @b), "\n"; exit } wait; print $?, " ", substr($b[80], 0, 12), "\n"'""", {}),
    "bash": (["bash"], r"""bash -c 'a=$(head -c 60000000 /dev/zero | tr "\0" x); (echo sub ${#a}); b=$a$a; echo ${#b};
        for i in 1 2 3; do (echo $i ${#b}); done'""", {}),
    "bash, a locale set": (["bash"], r"""LC_ALL=C.UTF-8 bash -c 'a=$(head -c 60000000 /dev/zero | tr "\0" x)
        (echo sub ${#a}); for i in 1 2 3; do (echo $i ${a:5:3}); done'""", {}),
    "ruby": (["ruby"], r"""ruby -e 'a = Array.new(1_500_000) { |i| i.to_s * 2 }
        pid = fork { puts a.sum(&:size); exit!(3) }; Process.wait(pid); puts $?.exitstatus, a[1234567]'""", {}),
    "guile": (["guile"], r"""guile --no-auto-compile -c '(define v (make-vector 4000000 1)) (vector-set! v 77 5)
        (let ((p (primitive-fork))) (if (= p 0) (begin (display (vector-ref v 77)) (force-output) (primitive-_exit 3))
        (begin (display (status:exit-val (cdr (waitpid p)))) (display (vector-length v)) (newline))))'""", {}),
    "php": (["php"], r"""php -r '$a = []; for ($i = 0; $i < 1500000; $i++) $a[] = "x$i";
        if (($p = pcntl_fork()) === 0) { echo md5(implode(",", $a)), "\n"; exit(3); }
        pcntl_waitpid($p, $s); echo pcntl_wexitstatus($s), count($a), "\n";'""", {}),
    "php under Apache": (["apache2", "curl"], r"""mkdir -p $WORK/www; cp $WORK/page.php $WORK/www/; chmod -R a+rX $WORK
        envsubst '$WORK $PORT' <$WORK/apache.conf >$WORK/apache2.conf
        apache2 -f $WORK/apache2.conf -k start; for i in 1 2 3 4; do curl -sS --retry 20 --retry-connrefused \
        --retry-delay 1 http://127.0.0.1:$PORT/page.php; echo; done; apache2 -f $WORK/apache2.conf -k stop""",
                         {"apache.conf": APACHE, "page.php": PHP_PAGE}),
    "php-fpm": (["php-fpm8.2", "cgi-fcgi"], r"""printf '[global]\nerror_log=%s/log\n[www]\nlisten=127.0.0.1:%s\npm=static
        pm.max_children=2\nuser=www-data\ngroup=www-data\n' $WORK $PORT >$WORK/fpm.conf; chmod a+rX $WORK $WORK/page.php
        php-fpm8.2 -y $WORK/fpm.conf -F 2>/dev/null & pid=$!
        for i in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/$PORT) 2>/dev/null && break; sleep 0.1; done
        for i in 1 2 3 4; do SCRIPT_FILENAME=$WORK/page.php REQUEST_METHOD=GET cgi-fcgi -bind -connect 127.0.0.1:$PORT |
        tail -1; echo; done; kill -QUIT $pid; wait $pid; echo $?""", {"page.php": PHP_PAGE}),
    "python": (["/usr/bin/python3"], r"""/usr/bin/python3 -c 'import multiprocessing as m, hashlib
def work(i): return hashlib.md5(str(a[i::7]).encode()).hexdigest()
a = list(range(1500000))
with m.get_context("fork").Pool(3) as pool: print(pool.map(work, range(7)))'""", {}),
    "unshare": (["unshare"], "unshare -Ur id -u; unshare -Urpf --mount-proc sh -c 'echo $$'", {}),
    "bubblewrap": (["bwrap"], r"""bwrap --ro-bind / / --proc /proc --dev /dev --unshare-all \
        perl -e '@b = map { "x" x 1000000 } 1..60; print length(join "", @b), " $$\n"'""", {}),
    "Open MPI": (["mpicc", "mpirun"], r"""mpicc -O1 -o $WORK/sum $WORK/sum.c && mpirun --allow-run-as-root --oversubscribe \
        -np 2 --mca btl self,vader,tcp $WORK/sum 2>/dev/null""", {"sum.c": C_MPI}),
    "gcore": (["gcore"], r"""perl -e '$a = "MARKER" . "x" x 50000000; $| = 1; print "ready\n"; sleep 60' >$WORK/out & pid=$!
        while ! grep -q ready $WORK/out; do sleep 0.1; done; gcore -o $WORK/core $pid >/dev/null 2>&1
        kill $pid; test -s $WORK/core.$pid && echo a core""", {}),
    "musl child": (["musl-gcc"], r"""printf '#include <stdio.h>\nint main(void) { puts("musl"); return 4; }' >$WORK/m.c
        musl-gcc -o $WORK/m $WORK/m.c && sh -c "$WORK/m; echo \$?"; perl -e '@b = map { "x" x 1000000 } 1..60;
        system("$ENV{WORK}/m"); print $? >> 8, "\n"'""", {}),
    "faketime": (["faketime"], "faketime '2020-01-02 03:04:05' date +%F; faketime -f '@2020-01-02 03:04:05' $WORK/forks; "
                 "faketime '2020-01-02' sh -c 'date +%F'", {"forks.c": C_FORKS}),
    "eatmydata": (["eatmydata"], "eatmydata $WORK/forks; eatmydata sh -c 'sync; echo ok'", {"forks.c": C_FORKS}),
    "socket_wrapper behind": ([], r"""LD_PRELOAD="$LD_PRELOAD:libsocket_wrapper.so" SOCKET_WRAPPER_DIR=$WORK $WORK/forks""",
                              {"forks.c": C_FORKS}),
    "uid_wrapper behind": ([], r"""LD_PRELOAD="$LD_PRELOAD:libuid_wrapper.so" UID_WRAPPER=1 $WORK/forks""",
                           {"forks.c": C_FORKS}),
    "socket_wrapper in front": ([], r"""LD_PRELOAD="libsocket_wrapper.so:$LD_PRELOAD" SOCKET_WRAPPER_DIR=$WORK \
        sh -c "exec $WORK/forks" """, {"forks.c": C_FORKS}),
    "postgresql": ([], r"""chown postgres $WORK; export PATH=/usr/lib/postgresql/15/bin:$PATH
        as() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
        as initdb -D $WORK/db >/dev/null && as pg_ctl -D $WORK/db -l $WORK/log -w -o "-p $PORT -k $WORK -c listen_addresses=''
        -c shared_buffers=64MB -c work_mem=64MB" start >/dev/null
        q() { as psql -h $WORK -p $PORT -d postgres -At -c "$1"; }
        as pgbench -h $WORK -p $PORT -i -s 3 -q postgres 2>/dev/null >/dev/null
        as pgbench -h $WORK -p $PORT -c 4 -t 200 postgres 2>/dev/null | grep 'actually processed'
        q "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches),
           (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)"
        q "select count(*), sum(length(md5(i::text || g::text))) from generate_series(1, 300000) i, generate_series(1, 2) g"
        q "select md5(string_agg(x, ',' order by x)) from (select md5(i::text) x from generate_series(1, 400000) i) s"
        as pg_ctl -D $WORK/db -m fast -w stop >/dev/null; echo $?""", {}),
    "erlang": (["erl"], r"""erl -noshell -eval 'L = lists:seq(1, 3000000), P = self(),
        [spawn(fun() -> P ! lists:sum(L) end) || _ <- lists:seq(1, 3)],
        [receive S -> io:format("~p~n", [S]) end || _ <- lists:seq(1, 3)], halt(3).'""", {}),
    "ocaml": (["ocamlopt"], "cd $WORK && ocamlopt -o a a.ml && ./a && ocaml a.ml", {"a.ml": OCAML}),
    "chromium, no zygote": (["chromium"], r"""printf '<html><body><script>let a = []; for (let i = 0; i < 2000000; ++i) a.push({i});
        document.body.append("sum " + a.reduce((s, x) => s + x.i, 0));</script></body></html>' >$WORK/page.html
        HOME=$WORK chromium --headless --no-sandbox --no-zygote --disable-gpu --disable-quic --no-first-run --disable-sync \
        --disable-background-networking --disable-component-update --disable-dev-shm-usage --user-data-dir=$WORK/profile \
        --dump-dom file://$WORK/page.html 2>/dev/null | grep -o 'sum [0-9]*'""", {}),
    "sotruss": (["sotruss"], "sotruss perl -e 'print \"ran\\n\"' 2>/dev/null", {}),
    "compilers": (["gcc"], "gcc -O1 -o $WORK/forks $WORK/forks.c && $WORK/forks", {"forks.c": C_FORKS}),
}


# A device file that all may open, for this run alone: programs that give up root (postgres) are managed, too.
OPEN_TO_ALL = """mknod -m 666 "$0/userfaultfd" c $(cat /sys/class/misc/userfaultfd/dev | tr : ' ') &&
mount --bind "$0/userfaultfd" /dev/userfaultfd && rm -r "$0" && exec "$@" """


def with_device_for_all(folder):
    if os.geteuid() == 0 and "UNCHANGED_DEVICE" not in os.environ:
        os.environ["UNCHANGED_DEVICE"] = "open"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "sh", "-c", OPEN_TO_ALL, folder,
                              sys.executable, *sys.argv])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(command, work, environment):
    """Output goes to a file, for what stays behind would hold a pipe open. The whole session is ended."""
    with open(work / ".out", "w+b") as out, open(work / ".err", "w+b") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                                   cwd=work, start_new_session=True)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = f"no end within {SECONDS} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read().decode(errors="replace")


def run_way(case, prefix):
    _, script, files = CASES[case]
    with tempfile.TemporaryDirectory(prefix="unchanged-") as folder:
        work = pathlib.Path(folder)
        os.chmod(work, 0o755)
        environment = dict(os.environ, WORK=folder, PORT=str(free_port()), LC_ALL="C.UTF-8")
        for name, text in files.items():
            (work / name).write_text(text)
            if name == "forks.c":
                subprocess.run(["gcc", "-O1", "-w", "-o", work / "forks", work / name], check=True)
        started = time.monotonic()
        status, out, err = run([*prefix, "bash", "-c", script], work, environment)
        # Nothing of it can be told from run to run but the folder's name and the port.
        told = out.replace(folder.encode(), b"WORK").replace(environment["PORT"].encode(), b"PORT")
        return {"status": status, "out": told, "err": err, "seconds": round(time.monotonic() - started, 2)}


def start_server(binaries):
    server = subprocess.Popen([f"{binaries}/fabricmgr", "memserver", "--listen", "127.0.0.1:0", "--size", "24G"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              start_new_session=True)
    for line in server.stdout:
        at = line.find(b"127.0.0.1:")
        if at >= 0:
            return server, line[at:].split()[0].strip(b",;.").decode()
    sys.exit("the memory server did not start")


def compare(case, binaries, address):
    missing = [program for program in CASES[case][0] if shutil.which(program) is None]
    if missing:
        return {"case": case, "result": f"needs {', '.join(missing)}"}
    base = [f"{binaries}/tidepool", "run", "--dram", "32M"]
    plain = run_way(case, [])
    row = {"case": case, "result": "same", "plain_seconds": plain["seconds"]}
    if not plain["out"] or isinstance(plain["status"], str):
        row["result"] = f"the plain run failed: {plain['status']}: {plain['err'][-400:]}"
    for way, far in (("direct", "cxl:2G"), ("remote", f"remote:{address}:1G")):
        got = run_way(case, [*base, "--far", far, "--"])
        row[f"{way}_seconds"] = got["seconds"]
        lines = [line for line in got["err"].splitlines() if line.startswith("tidepool:")]
        row[f"{way}_lines"] = sorted(set(lines))
        if got["out"] != plain["out"] or got["status"] != plain["status"]:
            row["result"] = (f"{way} differs: status {got['status']} for {plain['status']}\n"
                             f"   wanted {plain['out'][-300:]!r}\n   got    {got['out'][-300:]!r}\n   {got['err'][-600:]}")
        elif any("not managing memory" in line for line in lines) and case not in UNMANAGED:
            row["result"] = f"{way}: {lines[0]}"
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(CASES)})")
    binaries = str(pathlib.Path(options.bin).resolve())
    with_device_for_all(tempfile.mkdtemp(prefix="unchanged-device-"))
    server, address = start_server(binaries)
    bad = 0
    try:
        for case in options.names or CASES:
            row = compare(case, binaries, address)
            bad += row["result"] != "same"
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            seconds = " ".join(f"{row.get(f'{way}_seconds', '-'):>8}" for way in ("plain", "direct", "remote"))
            print(f"{case:<26} {seconds}  {row['result']}", flush=True)
            for way in ("direct", "remote"):
                for line in row.get(f"{way}_lines", []):
                    print(f"   {way}: {line}")
    finally:
        server.kill()
        server.wait()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
