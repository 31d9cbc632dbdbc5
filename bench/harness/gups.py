# SPDX-License-Identifier: Apache-2.0
"""A hot set that moves: updates/s, the share of accesses served locally against an oracle, seconds to recover,
wasted migrations; with sampling and without, against all-DRAM and zram."""

import json
import os
import subprocess
import threading
import time

from . import inside, paired
from .places import WORK, BenchError, say, tool
from .running import die_with_parent
from .tables import median, mib, table

SIZE = 2**30
SHARE = 0.20  # of the plain run's peak RSS: the budget
SECONDS = 48  # half of it for each hot set: at 1 % of a core it takes 10 to 20 s to find one
HOT_UPDATES = 0.90  # as in bench/gups.cc
CHANGE = SECONDS / 2
PAGE = 4096
WANTED = 0.95  # of the oracle's share, once steady
CONFIGS = {  # name -> (way, --conf)
    "plain": ("plain", None),
    "direct": ("direct", None),
    "direct, sampling off": ("direct", "sampling:off"),
    "remote": ("remote", None),
    "remote, sampling off": ("remote", "sampling:off"),
    "zram": ("zram", None),
}


def oracle_share(local_pages, pages, hot):
    """The best share that `local_pages` of local memory can serve: hot pages first, the rest on cold ones."""
    in_hot = min(local_pages, hot)
    in_cold = min(max(0, local_pages - hot), pages - hot)
    return HOT_UPDATES * in_hot / hot + (1 - HOT_UPDATES) * in_cold / (pages - hot)


def recovery(points, change, fraction=0.9):
    """`points` is [(seconds, share)]. Returns the steady share before the change (its last quarter) and the
    seconds after the change until the share was back at `fraction` of that; None when it never was.
    """
    before = [share for at, share in points if change * 0.75 <= at < change]
    if not before:
        return None, None
    steady = sum(before) / len(before)
    back = next((at for at, share in points if at >= change and share >= fraction * steady), None)
    return steady, None if back is None else back - change


def shares(looks, pages, hot):
    return [
        (
            look["seconds"],
            HOT_UPDATES * look["hot_local"] / hot
            + (1 - HOT_UPDATES) * look["cold_local"] / (pages - hot),
        )
        for look in looks
    ]


class Residency(threading.Thread):
    """Waits for gups's layout file, then runs the residency tool beside it until gups's time is over."""

    def __init__(self, pid, layout):
        super().__init__(daemon=True)
        self.pid, self.layout = pid, layout
        self.looks, self.error = [], None
        self.inside = {}

    def run(self):
        while not self.layout.exists():
            if not os.path.exists(f"/proc/{self.pid}"):
                self.error = "gups ended before its measured time began"
                return
            time.sleep(0.02)
        tool_run = subprocess.Popen(
            [tool("residency"), "--pid", str(self.pid), "--layout", self.layout],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        watch = inside.CpuWatch(self.pid)

        def look_inside():
            self.inside = watch.end() | inside.memory(self.pid)

        # Late, since it may hold up moves for a third of a second; but gups must still be there.
        late = threading.Timer(SECONDS - 1, look_inside)
        late.daemon = True
        late.start()
        out, err = tool_run.communicate()
        late.cancel()
        late.join()
        if tool_run.returncode != 0:
            self.error = err.strip()
        self.looks = [json.loads(line) for line in out.splitlines()]


def one_run(config, budget):
    way, conf = CONFIGS[config]
    layout = WORK / f"gups-{os.getpid()}.layout"
    layout.unlink(missing_ok=True)
    watcher = None

    def started(handle):  # again when a run of the peer's is repeated
        nonlocal watcher
        layout.unlink(missing_ok=True)  # it is written when all is filled, much later than this
        watcher = Residency(handle.child_pid(), layout)
        watcher.start()

    try:
        result = paired.run_way(
            way,
            [
                tool("gups"),
                "--size",
                str(SIZE),
                "--seconds",
                str(SECONDS),
                "--layout",
                layout,
                "--verify",
            ],
            budget,
            started=started,
            conf=conf,
            stats_path=paired.stats_path("gups", way),
        )
        watcher.join(60)
    finally:
        layout.unlink(missing_ok=True)
    if watcher.error:
        raise BenchError(f"residency: {watcher.error}")
    said = json.loads(result.stdout)
    if said["verified"] is not True:
        raise BenchError("gups lost updates: memory is wrong")
    pages, hot = SIZE // PAGE, int(SIZE // PAGE * 0.10)
    points = shares(watcher.looks, pages, hot)
    steady, seconds = recovery(points, CHANGE)
    after = [share for at, share in points if at >= SECONDS * 0.875]
    result.extra.update(
        {
            "gups": said,
            "shares": [[round(at, 3), round(share, 4)] for at, share in points],
            "steady_share": steady,
            "steady_share_after": sum(after) / len(after) if after else None,
            "recovery_seconds": seconds,
            "look_seconds": max((look["look_seconds"] for look in watcher.looks), default=0),
            "inside": watcher.inside,
        }
    )
    told = [said["updates_per_second"] / 1e6, steady, result.extra["steady_share_after"], seconds]
    result.progress = "M updates/s, served locally before and after, s until back: " + ", ".join(
        "-" if value is None else f"{value:.3f}" for value in told
    )
    return result


def row(config, runs, plain, oracle, budget):
    def middle(get):
        values = [get(run) for run in runs]
        return None if any(value is None for value in values) else median(values)

    rate = [run.extra["gups"]["updates_per_second"] for run in runs]
    steady = middle(lambda run: run.extra["steady_share"])
    after = middle(lambda run: run.extra["steady_share_after"])
    back = middle(lambda run: run.extra["recovery_seconds"])
    wasted = middle(lambda run: (run.stats or {}).get("wasted_migrations"))
    peak = max(run.watch["peak_anon_bytes"] for run in runs)
    kept = peak <= paired.allowance(budget) if CONFIGS[config][0] in ("direct", "remote") else None
    ratio = median([a / b for a, b in zip(rate, plain)]) if plain else None
    data = {
        "updates_per_second": rate,
        "ratio_to_plain": ratio,
        "steady_share": steady,
        "steady_share_after": after,
        "share_of_oracle": None if after is None else after / oracle,
        "recovery_seconds": back,
        "wasted_migrations": wasted,
        "peak_anon_bytes": peak,
        "within_budget": kept,
        "runs": [run.summary() for run in runs],
    }
    text = [
        config,
        f"{median(rate) / 1e6:.2f} M/s",
        f"{ratio:.3f}x" if ratio else "",
        "-" if steady is None else f"{steady:.3f}",
        "-" if after is None else f"{after:.3f}",
        "-" if after is None or config == "plain" else f"{after / oracle:.3f}",
        "-" if config == "plain" else ("never" if back is None else f"{back:.1f} s"),
        "-" if wasted is None else f"{wasted:.0f}",
        mib(peak) + (" OVER" if kept is False else ""),
    ]
    return text, data


def cost_of_sampling(runs, off):
    """Shares of one core: by its own count; by getrusage, at most: what its thread used, less what it says that
    moving pages took, less what the same thread used in the same round with sampling off."""
    told = [run.extra["inside"] for run in runs]
    if not told or not all("moving_cpu" in one for one in told):
        return None
    cost = {
        key: median([one[key] for one in told])
        for key in ("sampling_cpu_own", "moving_cpu", "sampler_thread_cpu")
    }
    idle = [run.extra["inside"].get("sampler_thread_cpu") for run in off or ()]
    if idle and None not in idle:
        cost["sampling_cpu_getrusage"] = median(
            [one["sampler_thread_cpu"] - one["moving_cpu"] - rest for one, rest in zip(told, idle)]
        )
    return cost


def sampling_note(config, cost):
    if not cost or "sampling_cpu_getrusage" not in cost:
        return []
    return [
        f"{config}: sampling {cost['sampling_cpu_own']:.2%} of a core by its own count (with the faults it causes); by "
        f"getrusage {cost['sampling_cpu_getrusage']:.2%}: its thread {cost['sampler_thread_cpu']:.2%}, less "
        f"{cost['moving_cpu']:.2%} for moving pages, less what it uses with sampling off"
    ]


def measure(count, only):
    ways = paired.choose(only)
    configs = [name for name, (way, _) in CONFIGS.items() if way in ways]
    say("gups: a plain run first, to learn the footprint")
    size = one_run("plain", None).watch["peak_rss_bytes"]
    budget = int(size * SHARE)
    say(f"gups: footprint {mib(size)}, budget {mib(budget)}")
    results, errors = paired.rounds("gups", configs, count, lambda config: one_run(config, budget))
    pages, hot = SIZE // PAGE, int(SIZE // PAGE * 0.10)
    oracle = oracle_share(budget // PAGE, pages, hot)
    plain = [run.extra["gups"]["updates_per_second"] for run in results.get("plain", [])]
    rows, costs = [], []
    data = {
        "budget_bytes": budget,
        "footprint_bytes": size,
        "oracle_share": oracle,
        "configs": {},
    }
    for config, runs in results.items():
        if config in errors or not runs:
            rows.append([config, "failed"] + [""] * 7)
            data["configs"][config] = {"error": errors.get(config, "not run")}
            continue
        text, found = row(config, runs, plain, oracle, budget)
        rows.append(text)
        data["configs"][config] = found
        if not CONFIGS[config][0] in ("direct", "remote"):
            continue
        found["cost_of_sampling"] = cost_of_sampling(runs, results.get(config + ", sampling off"))
        costs += sampling_note(config, found["cost_of_sampling"])
        costs += inside.memory_note(config, runs)
    header = [
        "",
        "updates",
        "vs plain",
        "local share 1",
        "local share 2",
        "of oracle",
        "back in",
        "wasted",
        "peak local",
    ]
    notes = [
        f"1 GiB, 2 threads, 90 % of updates to a random 10 % of the pages, which changes after {CHANGE:.0f} s",
        f"budget {mib(budget)}; an oracle would serve {oracle:.3f} locally; wanted: {WANTED} of it",
        "local share: of all accesses, in the last quarter of each phase, from /proc/PID/pagemap every 250 ms",
        "direct = emulated CXL pool; back in: seconds after the change until 90 % of share 1",
        f"medians of {count} rounds, order rotated; every run's memory was checked in the end",
    ]
    return table("hot set that moves (gups), 20 % of its memory", header, rows, notes + costs), data
