# SPDX-License-Identifier: Apache-2.0
"""Runs programs under the watcher (bench/rss_watch.cc) and cleans up after them, whatever happens.

Nothing outlives the harness: every program is told by the kernel to end when its parent does, the context
managers here end them on errors and Ctrl-C, and SIGTERM is turned into an ordinary exit.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import tempfile

from .places import WORK, BenchError, KilledError, binary, tool

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent():
    """Between fork and exec: SIGTERM for this process when the harness ends, even if it was killed."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def turn_sigterm_into_exit():
    def leave(*_):
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)


class Run:
    """What one watched run came to: the watcher's report, the program's output, the statistics file."""

    def __init__(self, watch, stdout, stderr, stats=None):
        self.watch = watch
        self.stdout = stdout
        self.stderr = stderr
        self.stats = stats
        self.seconds = watch["seconds"]
        self.extra = {}
        self.progress = ""  # what else is worth saying when the run is over

    def summary(self):
        kept = {key: value for key, value in self.watch.items() if key != "series" or value}
        if self.stats is not None:
            kept["stats"] = self.stats
        kept.update(self.extra)
        return kept


class Started:
    """A running program. Use as a context manager: leaving it ends the program if it still runs."""

    def __init__(self, command, env=None, cgroup=None, cwd=None, series_ms=0, exact_ms=0):
        self.command = [str(word) for word in command]
        WORK.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(prefix="run-", dir=WORK)
        path = self.folder.name
        self.report = os.path.join(path, "watch.json")
        watcher = [str(tool("rss_watch")), "--out", self.report]
        if cgroup:
            watcher += ["--cgroup", str(cgroup)]
        if series_ms:
            watcher += ["--series-ms", str(series_ms)]
        if exact_ms:
            watcher += ["--exact-ms", str(exact_ms)]
        self.out = open(os.path.join(path, "stdout"), "w+", encoding="utf-8", errors="replace")
        self.err = open(os.path.join(path, "stderr"), "w+", encoding="utf-8", errors="replace")
        # A session of its own: Ctrl-C on the terminal reaches the harness alone, which then cleans up in order.
        self.process = subprocess.Popen(
            watcher + ["--"] + self.command,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            env=dict(os.environ, **(env or {})),
            cwd=cwd,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()  # the watcher kills the program, then ends
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.out.close()
        self.err.close()
        self.folder.cleanup()

    def child_pid(self):
        """The watched program's own pid (it is the watcher's only child)."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        for _ in range(1000):
            try:
                words = open(path, encoding="ascii").read().split()
            except OSError:
                break
            if words:
                return int(words[0])
            if self.process.poll() is not None:
                break
        raise BenchError("the program ended before it could be looked at")

    def finish(self, timeout=1800):
        """Waits for the end; raises BenchError, with the program's last words, when it failed."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise BenchError(f"still running after {timeout} s: {' '.join(self.command)}") from None
        self.out.seek(0)
        self.err.seek(0)
        stdout, stderr = self.out.read(), self.err.read()
        if code != 0:
            last = "\n".join((stderr or stdout).strip().splitlines()[-15:])
            kind = KilledError if code == 128 + signal.SIGKILL else BenchError
            raise kind(f"exit status {code} from: {' '.join(self.command)}\n{last}")
        with open(self.report, encoding="utf-8") as file:
            return Run(json.load(file), stdout, stderr)


def run(command, **options):
    timeout = options.pop("timeout", 1800)
    with Started(command, **options) as started:
        return started.finish(timeout)


def tidepool_command(budget, far, command, stats_path, conf=None, build=None):
    """`tidepool run` in front of a command. `budget` is a number of bytes or a text such as "100%"."""
    words = [binary("tidepool", build), "run", "--dram", str(budget)]
    for spec in far:
        words += ["--far", spec]
    for setting in conf.split(",") if conf else ():
        key, _, value = setting.partition(":")
        words += [f"--{key}", value] if key in ("rows", "rows-ahead") else ["--conf", setting]
    return words + ["--stats", stats_path, "--"] + list(command)


def read_stats(path):
    """The statistics JSON that the run left; None (and no failure) when it left none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


class Listener:
    """A daemon that prints where it listens, for as long as the context lasts."""

    def __init__(self, command):
        self.command = [str(word) for word in command]
        self.process = None
        self.port = None

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+", dir=WORK)
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )
        for line in self.process.stdout:
            found = re.search(r"listening on \S*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                return self
        self.process.wait()
        self.log.seek(0)
        raise BenchError(f"{self.command[0]} did not start: {self.log.read().strip()}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


class MemoryServer(Listener):
    """A `fabricmgr memserver` on a free port of the loopback."""

    def __init__(self, size="2G", build=None):
        super().__init__([binary("fabricmgr", build), "memserver", "--listen", "127.0.0.1:0", "--size", size])
        self.size = size

    def spec(self):
        return f"remote:127.0.0.1:{self.port}:{self.size}"


class DistantServer(MemoryServer):
    """The same at the end of a network: a round trip takes ROUND_TRIP_US longer."""

    ROUND_TRIP_US = 200

    def __enter__(self):
        super().__enter__()
        words = [tool("delay_relay"), "--port", self.port, "--us", self.ROUND_TRIP_US]
        self.relay = Listener(words)
        try:
            self.port = self.relay.__enter__().port
        except BaseException:
            super().__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.relay.__exit__()
        super().__exit__()
