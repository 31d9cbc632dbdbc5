# SPDX-License-Identifier: Apache-2.0
"""Paired rounds: every way of running a program once a round, the order rotated each round, so that whatever
else the machine does falls on all of them alike. Ratios are taken inside a round, then the median of them."""

import os
import pathlib

from .places import WORK, BenchError, KilledError, say
from .nbd import Nbd
from .running import DistantServer, MemoryServer, Started, read_stats, tidepool_command
from .swapfile import FOLDER, SwapFile
from .tables import median, mib, spread, table
from .zram import Zram

WAYS = ("plain", "direct", "remote", "zram")
# With the fair peers of a memory server: swap over the network, and the local memory that zram has.
ALL_WAYS = (*WAYS, "nbd", "equal")
# Where a disk is all there is; and its fair peer, on the same one. Only where they are asked for: disks differ.
DISK_WAYS = ("file", "swapfile")
SERVERS = {"remote": MemoryServer, "equal": MemoryServer, "distant": DistantServer}
SWAPS = {"zram": Zram, "nbd": Nbd, "swapfile": SwapFile}
FAR_SIZE = "2G"
SWAP_TRIES = 5
LABEL = {
    "plain": "plain (all its memory)",
    "direct": "tidepool, emulated CXL pool",
    "remote": "tidepool, memory server",
    "zram": "kernel swap to zram",
    "nbd": "kernel swap over NBD",
    "equal": "tidepool, memory server, zram's total",
    "distant": f"tidepool, memory server {DistantServer.ROUND_TRIP_US} us away",
    "file": "tidepool, a file on a disk",
    "swapfile": "kernel swap to a file of the disk",
    "fits": "tidepool, everything fits",
}


def allowance(budget):
    """What peak anonymous local memory may reach: the budget + 5 % + 16 MiB."""
    return int(budget * 1.05) + 16 * 2**20


def parts(way):
    """Of `WAY[+SETTING...][@BUILD]`, as in remote+foretell:auto@build/old: the way, the settings for --conf (and
    rows:VALUE for --rows, rows-ahead:VALUE for --rows-ahead), and the build whose binaries run (None: this tree's)."""
    words, _, build = way.partition("@")
    base, *settings = words.split("+")
    return base, settings, pathlib.Path(build) if build else None


def stats_path(name, way):
    return WORK / f"{name}-{way.replace('/', '_')}.stats.json"


def label(way):
    base, settings, build = parts(way)
    words = [LABEL[base], *settings] + ([f"of {build}"] if build else [])
    return ", ".join(words)


def choose(only, ways=WAYS, when_asked=()):
    """The ways to run: those asked for, less those this machine cannot do (said once). `when_asked`: of others."""
    wanted = ways
    if only is not None:
        ways = (*ways, *when_asked)
        wanted = sorted(dict.fromkeys(only), key=lambda way: [*ways, parts(way)[0]].index(parts(way)[0]))
    chosen = [way for way in wanted if parts(way)[0] in ways]
    unknown = {way for way in wanted if parts(way)[0] not in ways} - {"fits"}
    if unknown:
        raise BenchError(
            f"no way of running called {', '.join(sorted(unknown))} (known: {', '.join(ways)})"
        )
    for name, peer in SWAPS.items():
        if name in chosen and peer.why_not():
            say(f"{name} peer left out: {peer.why_not()}")
            chosen.remove(name)
    if "equal" in chosen and "zram" not in chosen:
        say("equal left out: it takes the local memory that zram took, and zram does not run")
        chosen.remove("equal")
    if not chosen:
        raise BenchError("nothing left to run")
    return chosen


def _under_swap(name, go, command, budget):
    """One run under the kernel's limit. Reclaim there sometimes gives up and kills a program that could have
    gone on: such a run is repeated, and the times that it happened are told with the figures."""
    killed = 0
    while True:
        try:
            with SWAPS[name](budget) as peer:
                result = go(command, cgroup=peer.cgroup)
                result.extra[name] = peer.figures() | {"killed_before": killed}
                return result
        except KilledError as error:
            killed += 1
            if killed == SWAP_TRIES:
                raise KilledError(f"killed by the kernel {killed} times running: {error}") from None
            say(f"{name}: killed by the kernel under its memory limit ({killed}); once more")


# Of the last run of a command under zram: the local memory that it took, the pool's and the program's.
_zram_local = {}


def run_way(
    way, command, budget, started=None, conf=None, far_size=FAR_SIZE, stats_path=None, **options
):
    """One run of `command` in one way. `started(handle)` is called while the program runs."""

    def go(words, cgroup=None):
        with Started(words, cgroup=cgroup, **options) as handle:
            if started:
                started(handle)
            return handle.finish()

    if way == "plain":
        return go(command)
    full, (way, settings, build) = way, parts(way)
    conf = ",".join([*([conf] if conf else []), *settings]) or None
    key = tuple(map(str, command))
    if way in SWAPS:
        result = _under_swap(way, go, command, budget)
        if way == "zram":
            _zram_local[key] = result.extra["zram"]["local_bytes"]
        return result
    if way == "equal":
        if key not in _zram_local:
            raise BenchError("zram has no run whose local memory could be taken")
        budget = _zram_local[key]
    path = str(stats_path)
    if os.path.exists(path):
        os.unlink(path)
    if way in SERVERS:
        with SERVERS[way](far_size, build) as server:
            result = go(tidepool_command(budget, [server.spec()], command, path, conf, build))
    elif way == "direct":
        result = go(tidepool_command(budget, [f"cxl:{far_size}"], command, path, conf, build))
    elif way == "file":
        far = f"file:{FOLDER}:{far_size}:direct"
        result = go(tidepool_command(budget, [far], command, path, conf, build))
    elif way == "fits":
        result = go(tidepool_command("100%", [], command, path, conf, build))
    else:
        raise BenchError(f"no way of running called {full}")
    result.stats = read_stats(path)
    result.extra["budget_bytes"] = budget
    return result


def rounds(name, ways, count, one):
    """Calls one(way) for every way in every round; returns {way: [Run, ...]}. An error in one way is kept as its
    outcome, so that the others still get measured: {way: "text"} in the second result."""
    results = {way: [] for way in ways}
    errors = {}
    for number in range(count):
        shift = number % len(ways)
        for way in ways[shift:] + ways[:shift]:
            if way in errors:
                continue
            try:
                result = one(way)
            except BenchError as error:
                errors[way] = str(error)
                say(f"{name}: {way} FAILED: {error}")
                continue
            results[way].append(result)
            say(
                f"{name}: round {number + 1}/{count}  {way:<7} {result.seconds:7.2f} s  "
                f"peak anonymous {mib(result.watch['peak_anon_bytes']):>9}  "
                f"major faults {result.watch['major_faults']}"
                + (f"  ({result.progress})" if result.progress else "")
            )
    return results, errors


def ratios(results, way, base="plain"):
    return [a.seconds / b.seconds for a, b in zip(results[way], results.get(base, []))]


def own_count(way, runs):
    """What the runs' own statistics say about the cost of Tidepool itself: one note, or none."""
    told = [run.stats for run in runs if run.stats]
    if not told:
        return []

    def middle(key):
        values = [stats[key] for stats in told if isinstance(stats.get(key), (int, float))]
        return median(values) if values else None

    parts = []
    for key, words, scale in (
        ("sampling_cpu_ratio", "sampling {:.2f} % of a core", 100),
        ("promoted_bytes", "{:.0f} MiB promoted", 2**-20),
        ("demoted_bytes", "{:.0f} MiB demoted", 2**-20),
        ("wasted_migrations", "{:.0f} wasted migrations", 1),
    ):
        value = middle(key)
        if value is not None:
            parts.append(words.format(value * scale))
    return [f"{way}, by its own count: " + ", ".join(parts)] if parts else []


def peer_count(way, runs):
    """What a swap device took, and how often the kernel killed the peer before it ended: notes."""
    if way not in SWAPS or not runs:
        return []
    notes = []
    killed = sum(run.extra.get(way, {}).get("killed_before", 0) for run in runs)
    if killed:
        notes = [f"{way}: {killed} runs more were killed by the kernel under its memory limit, and repeated"]
    pools = [run.extra[way]["compressed_peak_bytes"] for run in runs if "compressed_peak_bytes" in run.extra.get(way, {})]
    if pools:
        local = median([run.extra[way]["local_bytes"] for run in runs])
        notes.append(f"{way}: its pool took {mib(median(pools))} beside the limit, {mib(local)} of local memory in all")
    return notes


def _within(run, budget):
    return run.watch["peak_anon_bytes"] <= allowance(run.extra.get("budget_bytes", budget))


def report(title, results, errors, budget, same, notes=()):
    """The table of a paired time measurement, and the same as data. `same` maps way -> True, False or None."""
    rows, data = [], {}
    for way, runs in results.items():
        if way in errors or not runs:
            rows.append([label(way), "failed", "", "", "", "", ""])
            data[way] = {"error": errors.get(way, "not run")}
            continue
        times = [run.seconds for run in runs]
        ratio = ratios(results, way)
        peak = max(run.watch["peak_anon_bytes"] for run in runs)
        bounded = parts(way)[0] in ("direct", "remote", "equal") and budget
        kept = all(_within(run, budget) for run in runs) if bounded else None
        rows.append(
            [
                label(way),
                f"{median(times):.2f} s",
                spread(times),
                f"{median(ratio):.2f}x" if ratio else "",
                spread(ratio) if ratio else "",
                mib(peak) + (" OVER" if kept is False else ""),
                {True: "yes", False: "DIFFERENT", None: "-"}[same.get(way)],
            ]
        )
        data[way] = {
            "label": label(way),
            "seconds": times,
            "median_seconds": median(times),
            "ratio": ratio,
            "median_ratio": median(ratio) if ratio else None,
            "peak_anon_bytes": peak,
            "within_budget": kept,
            "same_result": same.get(way),
            "runs": [run.summary() for run in runs],
        }
    notes = list(notes)
    for way, runs in results.items():
        notes += own_count(way, runs) + peer_count(way, runs)
    if budget:
        notes.append(
            f"budget {mib(budget)}; peak local memory may reach {mib(allowance(budget))} (+5 % +16 MiB)"
        )
    notes.append(
        f"{max(len(runs) for runs in results.values())} rounds, order rotated; ratio to plain inside a round"
    )
    header = ["", "median", "spread", "vs plain", "spread", "peak local memory", "same result"]
    return table(title, header, rows, notes), {"budget_bytes": budget, "ways": data}
