# SPDX-License-Identifier: Apache-2.0
"""The fabric manager behind its API: idle agents with a heartbeat over mutual TLS, durable assignments, a long list, and
all of it for root and for agents while thousands of strangers come."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from .places import FABRICMGR, WORK, BenchError, need, say, tool
from .running import die_with_parent
from .tables import median, table

AGENTS = 4096
PERIOD_S = 5
SECONDS = 20
CALLERS = 64
REGIONS = 10_000
PAGE = 4096
STRANGERS = 8600
BEATING = 256  # agents meanwhile, a heartbeat a second each

CONFIG = """
state = "{folder}/fabric.db"
log_level = "warning"
[unix]
path = "{folder}/sock"
[tcp]
listen = "127.0.0.1:0"
certificate = "{folder}/ca/manager.crt"
key = "{folder}/ca/manager.key"
ca = "{folder}/ca/ca.crt"
crl = "{folder}/ca/crl.pem"
[limits]
requests_per_second = 1000000
burst = 1000000
connections_per_principal = 8192
"""


class Fabric:
    """A running manager with a pool, a device of PAGE granularity and one host."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.command("ca", "init", "--dir", f"{folder}/ca")
        self.command("ca", "issue", "server", "manager", "--host", "127.0.0.1", "--dir", f"{folder}/ca")
        for kind, name in [("host", "node0"), ("operator", "op")]:
            self.command("ca", "issue", kind, name, "--dir", f"{folder}/ca")
        (self.folder / "fabric.toml").write_text(CONFIG.format(folder=folder))
        self.command("init", "--config", f"{folder}/fabric.toml")
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [FABRICMGR, "serve", "--config", f"{folder}/fabric.toml"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=die_with_parent,
            )
        self.process.stdout.readline()
        self.address = self.process.stdout.readline().split("https://")[-1].strip()
        if not self.address:
            raise BenchError("the fabric manager did not start")
        with open(self.folder / "pool", "wb") as pool:
            pool.truncate(64 * REGIONS * PAGE)
        self.command("pool", "add", "cxl", "--class", "cxl")
        self.command(
            "device", "add", "dev0", "--pool", "cxl", "--address", f"{folder}/pool", "--granularity", str(PAGE)
        )
        self.command("host", "add", "node0", "--lease", "1h")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def command(self, *words, **places):
        done = subprocess.run(
            [FABRICMGR, *words],
            env=dict(os.environ, **{"TIDEPOOL_FABRIC": f"unix:{self.folder}/sock", **places}),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise BenchError(f"fabricmgr {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def load(self, who, path, body, connections, period_ms, seconds):
        request = self.folder / "request"
        request.write_text(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}",
            newline="",
        )
        ca = self.folder / "ca"
        words = [self.address, ca / "ca.crt", ca / f"{who}.crt", ca / f"{who}.key", request]
        return subprocess.Popen(
            [tool("fabric_api_load"), *map(str, words), str(connections), str(period_ms), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )

    def get(self, path):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(f"{self.folder}/sock")
        start = time.perf_counter()
        connection.request("GET", path)
        body = connection.getresponse().read()
        took = time.perf_counter() - start
        connection.close()
        return took, json.loads(body)


def result_of(process):
    text = process.communicate(timeout=120)[0]
    if process.returncode != 0:
        raise BenchError(f"the agents did not all get in: {text.strip()}")
    return json.loads(text)


def heartbeats(fabric):
    """CPU of the manager while every agent is connected and beats; its memory before and then."""
    before = fabric.resident()
    agents = fabric.load("node0", "/v1/hosts/node0/heartbeat", "{}", AGENTS, PERIOD_S * 1000, SECONDS)
    start = time.monotonic()
    while fabric.get("/v1/status")[1]["connections"] < AGENTS:
        if agents.poll() is not None or time.monotonic() - start > 60:
            raise BenchError("the agents did not all connect")
        time.sleep(0.2)
    opened = time.monotonic() - start
    time.sleep(PERIOD_S)  # one period to settle
    window = SECONDS - 2 * PERIOD_S
    cpu = fabric.cpu_seconds()
    time.sleep(window)
    cpu = fabric.cpu_seconds() - cpu
    resident = fabric.resident()
    result = result_of(agents)
    if result["errors"]:
        raise BenchError(f"{result['errors']} heartbeats failed")
    result.update(
        cpu_ratio=cpu / window,
        opened_seconds=opened,
        resident_bytes=resident,
        bytes_a_connection=(resident - before) / AGENTS,
    )
    return result


def assignments(fabric):
    body = json.dumps({"host": "node0", "size_bytes": PAGE})
    return result_of(fabric.load("op", "/v1/regions", body, CALLERS, 0, 10))


def listing(fabric):
    while len(fabric.get("/v1/regions?limit=10000")[1]["items"]) < REGIONS:
        assignments(fabric)
    times = [fabric.get(f"/v1/regions?limit={REGIONS}")[0] for _ in range(20)]
    return {"items": REGIONS, "p50_ms": median(times) * 1000, "max_ms": max(times) * 1000}


@contextlib.contextmanager
def strangers(fabric, addresses):
    """STRANGERS of so many addresses; yields what they counted, once they are gone."""
    counts = {}
    with subprocess.Popen(
        [sys.executable, pathlib.Path(__file__).with_name("strangers.py"), fabric.address, str(STRANGERS), str(addresses)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    ) as process:
        try:
            if process.stdout.readline() != "flooding\n":
                raise BenchError("the strangers did not all connect")
            yield counts
            counts.update(json.loads(process.communicate(timeout=60)[0]))
        finally:
            process.kill()


def spread(times):
    """In milliseconds."""
    times = sorted(times)
    return {"p50_ms": median(times) * 1000, "p99_ms": times[len(times) * 99 // 100] * 1000, "max_ms": times[-1] * 1000}


def flooded(fabric, addresses):
    """What root and agents wait for, those that are connected and those that come, while strangers of so many addresses
    come as fast as they can."""
    beat = "/v1/hosts/node0/heartbeat"
    agents = fabric.load("node0", beat, "{}", BEATING, 1000, SECONDS)
    while fabric.get("/v1/status")[1]["connections"] < BEATING:
        if agents.poll() is not None:
            raise BenchError("the agents did not all connect")
        time.sleep(0.2)
    ca = fabric.folder / "ca"
    agent = {
        "TIDEPOOL_FABRIC": f"https://{fabric.address}",
        "TIDEPOOL_FABRIC_CA": str(ca / "ca.crt"),
        "TIDEPOOL_FABRIC_CERT": str(ca / "node0.crt"),
        "TIDEPOOL_FABRIC_KEY": str(ca / "node0.key"),
    }
    with strangers(fabric, addresses) as counts:
        commands, requests, comings = [], [], []
        while agents.poll() is None:
            start = time.perf_counter()
            fabric.command("status")
            commands.append(time.perf_counter() - start)
            requests.append(fabric.get("/v1/status")[0])
            start = time.perf_counter()
            fabric.command("whoami", **agent)
            comings.append(time.perf_counter() - start)
    beats = result_of(agents)
    return {
        "addresses": addresses,
        "command": spread(commands),
        "request": spread(requests),
        "beat": {key[:-2] + "ms": beats[key] / 1000 for key in ("p50_us", "p99_us", "max_us")},
        "beats": beats["answers"],
        "late": beats["late"],
        "errors": beats["errors"],
        "coming": spread(comings),
        "strangers": counts,
    }


def one_round():
    need(FABRICMGR, "run 'make'")
    with tempfile.TemporaryDirectory(prefix="fabric-", dir=WORK) as folder, Fabric(folder) as fabric:
        return {
            "heartbeats": heartbeats(fabric),
            "assign": assignments(fabric),
            "list": listing(fabric),
            # Last: it takes the manager a while to forget them.
            "flood": flooded(fabric, 1),
            "flood_of_many": flooded(fabric, 250),
        }


def measure(count, _only):
    rounds = []
    for number in range(count):
        rounds.append(one_round())
        beat = rounds[-1]["heartbeats"]
        say(f"fabric-api {number + 1}/{count}: {beat['cpu_ratio'] * 100:.1f} % of a core for {AGENTS} agents")

    def of(part, key):
        return median([one[part][key] for one in rounds])

    def worst(part, key):
        return " / ".join(f"{max(one[part][key][of] for one in rounds):.1f}" for of in ("p50_ms", "p99_ms", "max_ms")) + " ms"

    def under(part, title):
        return [
            [f"{STRANGERS} strangers of {title}, p50 / p99 / max", "", ""],
            ["  `fabricmgr status` of root", worst(part, "command"), "1 s"],
            ["  its request alone", worst(part, "request"), ""],
            [f"  heartbeats of {BEATING} agents", worst(part, "beat"), "1 s"],
            ["  `fabricmgr whoami` over TLS, which connects anew", worst(part, "coming"), ""],
        ]

    rate = median([one["assign"]["answers"] / one["assign"]["seconds"] for one in rounds])
    rows = [
        [f"{AGENTS} agents, a heartbeat each {PERIOD_S} s: CPU", f"{of('heartbeats', 'cpu_ratio') * 100:.1f} % of a core", "50 %"],
        ["  answer p50 / p99", f"{of('heartbeats', 'p50_us'):.0f} / {of('heartbeats', 'p99_us'):.0f} us", ""],
        ["  memory of the manager", f"{of('heartbeats', 'resident_bytes') / 2**20:.0f} MiB", ""],
        ["  of it, a connection", f"{of('heartbeats', 'bytes_a_connection') / 1024:.1f} KiB", ""],
        ["  all handshakes", f"{of('heartbeats', 'opened_seconds'):.1f} s", ""],
        [f"durable assignments, {CALLERS} callers", f"{rate:.0f} /s", "500 /s"],
        ["  answer p50 / p99", f"{of('assign', 'p50_us') / 1000:.1f} / {of('assign', 'p99_us') / 1000:.1f} ms", ""],
        [f"list of {REGIONS} regions, p50", f"{of('list', 'p50_ms'):.0f} ms", "300 ms"],
        *under("flood", "one address"),
        *under("flood_of_many", "250 addresses"),
    ]
    notes = [
        f"medians of {count} rounds (of what strangers are there for: the worst); agents, strangers and manager share the "
        "machine; one certificate for all agents",
        "CPU and memory are the manager's alone",
    ]
    return table("the fabric manager's API", ["", "measured", "bound"], rows, notes), {"rounds": rounds}
