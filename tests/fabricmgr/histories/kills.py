# SPDX-License-Identifier: Apache-2.0
"""How long nobody can change anything after the manager that leads was killed, or its whole node was cut off from all
others, as when its machine has no power: measured, not judged."""

import time

from clients import GHOSTS
from cluster import MANAGERS
from history import History
from nemesis import Nemesis
from recorder import ELSEWHERE, OK, Recorder, ask

PAUSE = 0.005  # seconds between two tries


def measure(programs, kills, cut_off, say):
    history = History(programs, 0, 0, say)
    try:
        history.furnish()
        lose = cut_off_one if cut_off else kill_one
        times = sorted(after_one(history, lose, number, say) for number in range(kills))
    finally:
        history.end()
    say(f"{kills} times {'cut off' if cut_off else 'killed'}: a change is accepted again after "
        f"{at(times, 50):.2f} s (p50), {at(times, 99):.2f} s (p99), {times[-1]:.2f} s at most")


def at(times, percent):
    """By nearest rank."""
    return times[(len(times) * percent + 99) // 100 - 1]


def after_one(history, lose, number, say):
    cluster = history.cluster
    leader = history.until("somebody leads, and the others stand by", lambda: all_there(cluster))
    others = Recorder([cluster.sock(node) for node in MANAGERS if node != leader], PAUSE)
    bring_back = lose(cluster, leader)
    start = time.monotonic()
    _, _, answer = others.change(f"/v1/hosts/{GHOSTS[0]}", {"labels": {"kill": str(number)}}, start + 120, "PATCH")
    took = time.monotonic() - start
    if answer.outcome != OK:
        raise RuntimeError(f"after 120 s still nothing can be changed: {answer}")
    say(f"{leader}: {took:.2f} s")
    bring_back()
    return took


def kill_one(cluster, leader):
    process = cluster.managers[leader]
    process.end()
    return process.start


def cut_off_one(cluster, leader):
    fault = Nemesis(cluster, 0, None).cut_off(leader)
    fault.begin()
    return fault.end


def all_there(cluster):
    """Who leads, once the others answer that they do not; else None."""
    leader = cluster.leader()
    target = f"/v1/hosts/{GHOSTS[0]}"
    answers = {node: ask(cluster.sock(node), "PATCH", target, {"labels": {"here": "yes"}}) for node in MANAGERS}
    at_rest = leader and answers[leader].outcome == OK
    return leader if at_rest and all(answer.outcome == ELSEWHERE and answer.document
                                     for node, answer in answers.items() if node != leader) else None
