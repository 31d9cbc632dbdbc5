#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The fabricmgr program from outside: serve, ca and every noun-verb against a real daemon, over the Unix socket and
over mutual TLS; exit codes, JSON, a restart under an open watch.

    cli_test.py FABRICMGR [unittest arguments]
"""

import csv
import hashlib
import io
import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
DONE, FAILED, USAGE, NOT_FOUND, REFUSED, UNREACHABLE, CONFLICT, TIMED_OUT = range(8)


class Daemon:
    """`fabricmgr serve` in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.process = None
        self.addresses = []

    def start(self):
        if not (self.folder / "fabric.db").exists():
            subprocess.run(
                [PROGRAM, "init", "--config", str(self.folder / "fabric.toml")], stdout=subprocess.DEVNULL, check=True
            )
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--config", str(self.folder / "fabric.toml")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        wanted = 2
        self.addresses = [self.process.stdout.readline().split()[-1] for _ in range(wanted)]

    def end(self, number=signal.SIGTERM):
        if self.process is None:
            return None
        self.process.send_signal(number)
        status = self.process.wait(20)
        self.process.stdout.close()
        self.process = None
        return status


class FabricmgrTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.ca = str(self.folder / "ca")
        self.run_program("ca", "init", "--dir", self.ca)
        self.issue("server", "manager", "--host", "127.0.0.1")
        config = self.folder / "fabric.toml"
        self.issue("manager", "main")
        config.write_text(f"""
state = "{self.folder}/fabric.db"
[unix]
path = "{self.folder}/sock"
[tcp]
listen = "127.0.0.1:0"
certificate = "{self.ca}/manager.crt"
key = "{self.ca}/manager.key"
ca = "{self.ca}/ca.crt"
crl = "{self.ca}/crl.pem"
[memservers]
certificate = "{self.ca}/main.crt"
key = "{self.ca}/main.key"
ca = "{self.ca}/ca.crt"
crl = "{self.ca}/crl.pem"
""")
        self.daemon = Daemon(self.folder)
        self.daemon.start()

    def tearDown(self):
        self.daemon.end()
        self.temporary.cleanup()

    def environment(self, **more):
        environment = {"PATH": os.environ["PATH"], "TIDEPOOL_FABRIC": f"unix:{self.folder}/sock"}
        environment.update(more)
        return environment

    def run_program(self, *words, code=DONE, **more):
        codes = code if isinstance(code, tuple) else (code,)
        done = subprocess.run(
            [PROGRAM, *words], env=self.environment(**more), capture_output=True, text=True, timeout=60
        )
        self.assertIn(done.returncode, codes, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def issue(self, kind, name, *more):
        self.run_program("ca", "issue", kind, name, "--dir", self.ca, *more)

    def ask(self, *words, **more):
        return json.loads(self.run_program(*words, "--json", **more).stdout)

    def furnish(self):
        with open(self.folder / "pool", "wb") as pool:
            pool.truncate(64 << 20)
        self.run_program("pool", "add", "cxl", "--class", "cxl")
        self.run_program("device", "add", "dev0", "--pool", "cxl", "--address", str(self.folder / "pool"))
        self.run_program("host", "add", "node1", "--lease", "10m")
        self.run_program("host", "add", "node2")

    def over_tls(self, name):
        return {
            "TIDEPOOL_FABRIC": self.daemon.addresses[1],
            "TIDEPOOL_FABRIC_CA": f"{self.ca}/ca.crt",
            "TIDEPOOL_FABRIC_CERT": f"{self.ca}/{name}.crt",
            "TIDEPOOL_FABRIC_KEY": f"{self.ca}/{name}.key",
        }

    def test_a_region_from_plan_to_evidence(self):
        self.furnish()
        wish = ["--host", "node1", "--size", "4M", "--contiguous", "--shape", "pack"]
        wish += ["--avoid-domain", "rack1", "--avoid-domain", "rack2"]
        plan = self.run_program("plan", *wish, "--json").stdout
        (self.folder / "plan.json").write_text(plan)
        self.assertIn("extents", self.run_program("plan", *wish).stdout)
        answer = self.ask("region", "assign", *wish, "--label", "table", "--plan", str(self.folder / "plan.json"))
        region = str(answer["id"])
        self.run_program(
            "region", "assign", *wish, "--plan", str(self.folder / "plan.json"), code=CONFLICT
        )
        shown = self.ask("region", "show", region)
        self.assertEqual((shown["host"], shown["size_bytes"], shown["label"]), ("node1", 4 << 20, "table"))
        table = self.run_program("region", "list", "--host", "node1").stdout.splitlines()
        self.assertEqual(table[0].split()[:4], ["ID", "HOST", "STATE", "SIZE"])
        self.assertEqual(table[1].split()[:4], [region, "node1", "attached", "4M"])
        self.assertRegex(self.run_program("host", "show", "node1").stdout, r"(?m)^domain +-$")
        self.assertIn("4M of 64M given out", self.run_program("status").stdout)
        hurt = self.run_program("device", "ok-to-remove", "dev0", code=REFUSED).stdout
        self.assertIn("node1", hurt)
        self.run_program("device", "remove", "dev0", code=REFUSED)
        self.run_program("region", "release", region, code=REFUSED)
        self.run_program("region", "release", region, "--force")
        evidence = self.ask("region", "evidence", region)["items"]
        self.assertEqual([one["nonzero_bytes"] for one in evidence], [0])
        self.assertIn("SHA256", self.run_program("region", "evidence", region).stdout)
        self.assertIn("region.apply", self.run_program("audit", "list").stdout)
        self.assertEqual(self.ask("audit", "show", "2")["items"][0]["sequence"], 2)
        self.assertIn("pool.add", self.run_program("audit", "show", "1").stdout)
        self.assertIn("attached", self.run_program("event", "list", "--since", "0").stdout)
        index = self.ask("event", "list", "--since", "0")["items"][0]["index"]
        self.assertEqual({one["index"] for one in self.ask("event", "show", str(index))["items"]}, {index})
        self.assertEqual(self.run_program("event", "show", str(index)).stdout.split()[0], "INDEX")
        self.run_program("audit", "verify")
        self.run_program("device", "ok-to-remove", "dev0")

    def test_a_region_of_a_memory_server(self):
        self.issue("memserver", "mem0")
        server = subprocess.Popen(
            [PROGRAM, "memserver", "--listen", "127.0.0.1:0", "--size", "64M", "--json"]
            + ["--control", "127.0.0.1:0", "--cert", f"{self.ca}/mem0.crt", "--key", f"{self.ca}/mem0.key"]
            + ["--ca", f"{self.ca}/ca.crt", "--crl", f"{self.ca}/crl.pem"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            said = json.loads(server.stdout.readline())
            control = said["control_port"]
            with socket.create_connection(("127.0.0.1", said["port"])) as stranger:
                stranger.sendall(b"TIDEPOOL" + (1).to_bytes(2, "little") * 2 + bytes(52))
                answer = stranger.recv(64, socket.MSG_WAITALL)
                self.assertEqual(int.from_bytes(answer[10:12], "little"), 5, "memory for the asking")
            self.run_program("pool", "add", "far", "--class", "remote")
            self.run_program("device", "add", "mem0", "--pool", "far", "--address", f"127.0.0.1:{control}")
            self.run_program("host", "add", "node1")
            self.issue("host", "node1")
            region = str(self.ask("region", "assign", "--host", "node1", "--size", "4M", "--class", "remote")["id"])
            self.run_program("region", "release", region, "--force")
            evidence = self.ask("region", "evidence", region)["items"]
            self.assertEqual([(one["bytes"], one["nonzero_bytes"]) for one in evidence], [(4 << 20, 0)])
            server.send_signal(signal.SIGKILL)
            server.wait()
            # Where the manager has seen it go by now, there is no device of that class to ask.
            gone = ("region", "assign", "--host", "node1", "--size", "4M", "--class", "remote")
            self.run_program(*gone, code=(FAILED, REFUSED))
            self.assertIn("DEVICE_UNREACHABLE", self.run_program("health", code=FAILED).stdout)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def test_waiting_for_what_cannot_end_yet_times_out(self):
        self.furnish()
        region = str(self.ask("region", "assign", "--host", "node1", "--size", "2M")["id"])
        slow = self.run_program("region", "drain", region, "--timeout", "100ms", code=TIMED_OUT)
        self.assertRegex(slow.stderr, r"operation \d+ goes on; .*operation wait \d+")
        self.run_program("region", "resume", region)
        drain = str(self.ask("region", "drain", region, "--no-wait")["operation"])
        self.run_program("operation", "wait", drain, "--timeout", "1ms", code=TIMED_OUT)
        self.run_program("region", "resume", region)
        self.assertIn("cancelled", self.run_program("operation", "wait", drain, code=FAILED).stderr)
        self.run_program("host", "drain", "node1", "--no-wait")
        self.assertEqual(self.ask("host", "show", "node1")["state"], "draining")
        self.assertIn("host-drain", self.run_program("operation", "list").stdout.replace("_", "-"))

    def test_a_region_is_moved_and_a_move_is_called_off(self):
        self.furnish()
        with open(self.folder / "pool1", "wb") as pool:
            pool.truncate(64 << 20)
        region = str(self.ask("region", "assign", "--host", "node1", "--size", "4M")["id"])
        self.assertIn("at most 0 would", self.run_program("region", "move", region, code=REFUSED).stderr)
        self.run_program("device", "add", "dev1", "--pool", "cxl", "--address", str(self.folder / "pool1"))
        self.run_program("device", "set", "dev1", "--label", "rack=r7")
        self.run_program("region", "move", region, "--to", "dev9", code=NOT_FOUND)
        self.run_program("region", "move", region, "--to", "dev0", code=USAGE)
        self.run_program("region", "move", region, "--to", "dev1", "-l", "rack=r7", code=USAGE)
        self.run_program("region", "move", region, "-l", "rack=r8", code=NOT_FOUND)
        self.run_program("region", "move", region, "--to", "dev1", "--if-match", "1", code=CONFLICT)
        self.assertIn("would be done", self.run_program("region", "move", region, "--dry-run").stdout)
        moved = self.ask("region", "move", region, "-l", "rack=r7", "--no-wait")
        place, operation = str(moved["id"]), str(moved["operation"])
        self.assertEqual(self.ask("region", "show", place)["replaces"], int(region))
        self.assertEqual(self.ask("operation", "show", operation)["target"], int(place))
        self.run_program("region", "move", region, "--to", "dev1", code=REFUSED)
        self.run_program("region", "resume", region, "--no-wait")
        self.assertEqual(self.ask("region", "show", place)["state"], "draining")
        self.run_program("operation", "wait", operation, code=FAILED)
        self.run_program("region", "release", place, "--force")
        operation = str(self.ask("region", "move", region, "--to", "dev1", "--no-wait")["operation"])
        self.run_program("region", "release", region, "--force")
        self.run_program("operation", "wait", operation)
        self.run_program("region", "show", region, code=NOT_FOUND)

    def test_what_is_wrong_is_said_with_its_code(self):
        self.furnish()
        for code, words, says in [
            (USAGE, ["region", "assign"], "--host"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "-1"], "size"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "99999999999G"], "size"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "2M", "--zzz"], "zzz"),
            (USAGE, ["region", "frobnicate"], "frobnicate"),
            (USAGE, ["region"], "subcommand"),
            (USAGE, ["region", "list", "--state", "happy"], "happy"),
            (USAGE, ["region", "show", "x"], "not the number"),
            (USAGE, ["host", "add", "a/b"], "name"),
            (USAGE, ["host", "add", "n", "--lease", "soon"], "length of time"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "2M", "--plan", "/nowhere"], "JSON"),
            (USAGE, ["status", "--fabric", "ftp://x"], "unix:PATH"),
            (NOT_FOUND, ["host", "show", "nobody"], "nobody"),
            (NOT_FOUND, ["region", "show", "999"], "999"),
            (NOT_FOUND, ["audit", "show", "999"], "no record 999"),
            (NOT_FOUND, ["event", "show", "999"], "index 999"),
            (USAGE, ["event", "show", "0"], "from 1"),
            (USAGE, ["audit", "show", "x"], "whole number"),
            (REFUSED, ["region", "assign", "--host", "node1", "--size", "1T"], ""),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "25%"], "this machine's memory"),
            (REFUSED, ["pool", "remove", "cxl"], "device"),
            (CONFLICT, ["pool", "add", "cxl", "--class", "cxl"], "cxl"),
            (CONFLICT, ["device", "cordon", "dev0", "--if-match", "1"], "modified"),
            (UNREACHABLE, ["status", "--fabric", "unix:/nowhere/sock"], "TIDEPOOL_FABRIC"),
            (FAILED, ["device", "add", "d", "--pool", "cxl", "--address", "/nowhere/x"], "/nowhere/x"),
        ]:
            with self.subTest(words=words):
                done = self.run_program(*words, code=code)
                self.assertIn(says, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_help_of_the_memory_server_names_its_transports(self):
        text = subprocess.run([PROGRAM, "memserver", "--help"], capture_output=True, timeout=20).stdout
        self.assertIn(b"auto|tcp|verbs", text)
        self.assertNotIn(b"->", text)
        text.decode()

    def test_whatever_it_is_told_it_ends_with_a_code_and_a_reason(self):
        self.furnish()
        region = str(self.ask("region", "assign", "--host", "node1", "--size", "2M")["id"])
        generator = random.Random(17)
        verbs = ["list", "show", "add", "remove", "cordon", "uncordon", "resume", "fence", "assign", "resize"]
        verbs += ["release", "transfer", "evidence", "ok-to-remove", "verify"]
        flags = ["--host", "--size", "--class", "--pool", "--label", "--shape", "--max-devices", "--if-match", "--lease"]
        flags += ["--address", "--capacity", "--granularity", "--heads", "--domain", "--state", "--cursor", "--limit"]
        flags += ["--force", "--json", "--contiguous", "--plan", "--timeout", "--idempotency-key", "--fabric", "-", "--"]
        values = ["node1", "cxl", "dev0", region, "2M", "", "-1", "0", "1e9", "99999999999999999999", "a/b", "../x", "%s%n"]
        values += ["\n", "\x1b[2J", "\u00e4", b"\xff\xfe", "x" * 3000, "/dev/null", str(self.folder), "unix:", "://"]
        before = self.ask("status")["index"]
        for _ in range(200):
            words = [generator.choice(["pool", "device", "host", "region", "operation", "event", "audit", "plan"])]
            words += [generator.choice(verbs)] if words != ["plan"] else []
            for _ in range(generator.randrange(5)):
                words.append(generator.choice(flags if generator.random() < 0.5 else values))
            if words[0] not in ("plan", "operation", "event", "audit"):
                words.insert(2, "--dry-run")
            with self.subTest(words=words):
                done = subprocess.run(
                    [PROGRAM, *words], env=self.environment(), capture_output=True, errors="replace", timeout=60
                )
                self.assertIn(done.returncode, range(8), done.stderr)
                if done.returncode != DONE:
                    self.assertRegex(done.stderr, r"\S")
                    self.assertNotIn("terminate called", done.stderr)
        self.assertEqual(self.ask("status")["index"], before)

    def test_dry_runs_and_keys(self):
        self.furnish()
        before = self.ask("status")["index"]
        self.assertIn("would be done", self.run_program("host", "remove", "node2", "--dry-run").stdout)
        self.assertEqual(self.ask("status")["index"], before)
        words = ["region", "assign", "--host", "node1", "--size", "2M", "--idempotency-key", "k1"]
        self.assertEqual(self.ask(*words), self.ask(*words))
        self.assertEqual(len(self.ask("region", "list")["items"]), 1)
        first = self.ask("host", "list")["items"][0]["id"]
        self.assertEqual([one["name"] for one in self.ask("host", "list", "--cursor", str(first))["items"]], ["node2"])
        self.assertNotIn("node1", self.run_program("host", "list", "--cursor", str(first)).stdout)

    def test_many_hosts_are_resumed_at_once(self):
        self.furnish()
        self.run_program("host", "set", "node2", "--label", "rack=r7")
        self.run_program("region", "assign", "--host", "node1", "--size", "2M")
        before = self.ask("status")["index"]
        for which in ([], ["node1", "--all"], ["--all", "-l", "rack"], ["-l", ""], ["node1", "-l", "rack"]):
            self.assertRegex(self.run_program("host", "resume", *which, code=USAGE).stderr, r"say which|empty")
        self.run_program("host", "resume", "-l", "rack=", "--json", code=NOT_FOUND)
        self.run_program("host", "resume", "-l", "a b", code=USAGE)
        self.assertEqual(self.ask("status")["index"], before)
        for host in ("node1", "node2"):
            self.run_program("host", "drain", host, "--no-wait")
        seen = str(self.ask("host", "show", "node1")["modified"])
        self.assertIn("dry run", self.run_program("host", "resume", "--all", "--dry-run").stderr)
        late = self.run_program("host", "resume", "--all", "--if-match", seen, code=REFUSED)
        self.assertEqual([line.split()[:2] for line in late.stdout.splitlines()[1:]],
                         [["node1", "resumed"], ["node2", "refused"]])
        self.assertIn("1 of 2 were refused", late.stderr)
        told = self.ask("host", "resume", "-l", "rack=r7")["hosts"]
        self.assertEqual([(one["name"], one["outcome"]) for one in told], [("node2", "resumed")])
        self.assertEqual({one["outcome"] for one in self.ask("host", "resume", "--all")["hosts"]}, {"unchanged"})
        self.run_program("host", "resume", "node1")

    def check_chain(self, records):
        """The hashes as docs/fabric-manager.md says, from what was exported alone."""
        subjects = {"pool": 1, "device": 2, "host": 3, "region": 4, "operation": 5}
        for before, record in zip([None, *records], records):
            if before is not None:
                self.assertEqual(record["previous"], before["hash"])
            fields = [record[key] for key in ("sequence", "index", "time_ns", "actor", "verb")]
            fields += [subjects[record["subject"]], record["id"], record["outcome"], record["changes"]]
            hashed = hashlib.sha256(bytes.fromhex(record["previous"]))
            for field in fields:
                text = str(field).encode()
                hashed.update(f"{len(text)}:".encode() + text + b",")
            self.assertEqual(hashed.hexdigest(), record["hash"], record)

    def test_the_audit_is_exported_whole_or_not_at_all(self):
        self.furnish()
        for round_ in range(3):
            self.run_program("host", "set", "node1", "--label", f"round={round_}")
        out = self.folder / "audit.jsonl"
        said = self.ask("audit", "export", "--out", str(out))
        records = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual((said["records"], said["last"], said["head"]),
                         (len(records), records[-1]["sequence"], records[-1]["hash"]))
        self.assertEqual(said["head"], self.ask("audit", "verify")["head"])
        self.assertEqual([one["sequence"] for one in records], list(range(1, len(records) + 1)))
        self.assertEqual(out.stat().st_mode & 0o777, 0o600)
        self.check_chain(records)
        self.assertIn("set-labels", records[-1]["changes"])
        self.assertIn("set-labels", self.run_program("audit", "show", str(said["last"])).stdout)
        self.run_program("audit", "export", "--out", str(out), code=CONFLICT)
        self.assertEqual(self.run_program("audit", "export").stdout, out.read_text())
        text = self.run_program("audit", "export", "--format", "csv").stdout
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        self.assertEqual(rows, [{key: str(one[key]) for key in rows[0]} for one in records])
        middle = records[3]
        for since, first in [("3", 4), (str(records[-1]["sequence"]), None), ("2026-01-01", 1), ("2999-01-01", None),
                             ("2026-01-01T00:00:00Z", 1), ("0", 1), ("999999999", None)]:
            lines = self.run_program("audit", "export", "--since", since).stdout.splitlines()
            self.assertEqual(json.loads(lines[0])["sequence"] if lines else None, first, since)
        second = middle["time"][:19] + "Z"
        lines = self.run_program("audit", "export", "--since", second).stdout.splitlines()
        wanted = [one["sequence"] for one in records if one["time"] >= second[:19]]
        self.assertEqual([json.loads(line)["sequence"] for line in lines], wanted)
        for bad in ("", "-1", "x", "2026-02-30", "2026-13-01", "2026-05-01T12:00:00", "2026-05-01T25:00:00Z", "1e3",
                    "99999999999999999999", "1969-01-01", "2026-05-01 ", "\u0662"):
            if bad:
                self.assertIn("--since", self.run_program("audit", "export", "--since", bad, code=USAGE).stderr)
        self.run_program("audit", "export", "--format", "xml", code=USAGE)
        self.run_program("audit", "export", "--out", str(self.folder / "nowhere" / "x"), code=FAILED)
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, "audit", "export"], env=self.environment(), stdout=full,
                                  stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, FAILED)
        self.issue("viewer", "vic")
        nothing = self.folder / "empty"
        nothing.mkdir()
        self.run_program("audit", "export", "--out", str(nothing / "a"), code=REFUSED, **self.over_tls("vic"))
        self.assertEqual(list(nothing.iterdir()), [])

    def test_old_records_go_and_the_rest_is_still_a_chain(self):
        self.furnish()
        kept = [json.loads(line) for line in self.run_program("audit", "export").stdout.splitlines()]
        self.daemon.end()
        with open(self.folder / "fabric.toml", "a") as config:
            config.write("[audit]\nkeep_records = 2\n")
        self.daemon.start()
        while (verdict := self.ask("audit", "verify"))["removed"] == 0:
            self.ask("status")
        self.assertEqual((verdict["good"], verdict["text"]), (True, ""))
        rest = [json.loads(line) for line in self.run_program("audit", "export").stdout.splitlines()]
        self.assertEqual(rest[0]["sequence"], verdict["removed"] + 1)
        self.assertEqual(rest[0]["previous"], kept[verdict["removed"] - 1]["hash"])
        self.check_chain(rest)
        self.assertIn("audit.drop", [one["verb"] for one in rest])
        gone = self.run_program("audit", "export", "--since", "1", code=FAILED)
        self.assertIn(f"records 2 to {verdict['removed']} are not kept any more", gone.stderr)
        self.run_program("audit", "show", "1", code=NOT_FOUND)

    def test_an_export_that_is_cut_off_leaves_nothing_behind(self):
        """A manager that answers one page, and then something that does not follow, or nothing, until killed."""
        def page(sequences, following):
            items = [{"sequence": n, "hash": f"h{n}", "previous": f"h{n - 1}"} for n in sequences]
            return json.dumps({"items": items, "next": following, "index": 9}).encode()

        nothing = self.folder / "out"
        nothing.mkdir()
        path = str(self.folder / "fake")
        for second, code in ((page([4], 0), FAILED), (b"{", FAILED), (b"", UNREACHABLE), (None, -signal.SIGKILL)):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen()
                child = subprocess.Popen([PROGRAM, "audit", "export", "--out", str(nothing / "a")],
                                         env=self.environment(TIDEPOOL_FABRIC="unix:" + path), stderr=subprocess.DEVNULL)
                peer, _ = listener.accept()
                with peer:
                    for body in (page([1, 2], 2), second):
                        asked = b""
                        while b"\r\n\r\n" not in asked and (got := peer.recv(4096)):
                            asked += got
                        if body is None:
                            child.kill()
                        elif body:
                            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
                            peer.sendall(head.encode() + b"\r\n\r\n" + body)
                listener.close()
                os.unlink(path)
                self.assertEqual(child.wait(60), code)
            self.assertEqual(list(nothing.iterdir()), [], second)

    def test_roles_and_revocation_over_tls(self):
        self.furnish()
        for kind, name in [("viewer", "vic"), ("operator", "ann"), ("host", "node1")]:
            self.issue(kind, name)
        self.assertEqual(self.ask("whoami", **self.over_tls("ann"))["actor"], "operator:ann")
        self.run_program("status", **self.over_tls("vic"))
        self.run_program("device", "cordon", "dev0", code=REFUSED, **self.over_tls("vic"))
        self.run_program("device", "cordon", "dev0", **self.over_tls("ann"))
        self.run_program("pool", "add", "more", "--class", "cxl", code=REFUSED, **self.over_tls("ann"))
        self.run_program("host", "show", "node2", code=REFUSED, **self.over_tls("node1"))
        self.run_program("ca", "revoke", "operator:ann", "--dir", self.ca)
        self.daemon.process.send_signal(signal.SIGHUP)
        for _ in range(200):
            done = subprocess.run(
                [PROGRAM, "whoami"], env=self.environment(**self.over_tls("ann")), capture_output=True, timeout=20
            )
            if done.returncode != DONE:
                break
        self.assertEqual(done.returncode, UNREACHABLE)
        again = self.run_program("whoami", code=UNREACHABLE, **self.over_tls("ann"))
        self.assertIn("the manager says that this certificate is revoked", again.stderr)
        self.run_program("status", **self.over_tls("vic"))
        self.assertIn("revoked", self.run_program("ca", "list", "--dir", self.ca).stdout)
        books = self.ask("ca", "list", "--dir", self.ca)["items"]
        self.assertEqual([one["name"] for one in books if one["revoked"]], ["ann"])

    def test_tls_errors_are_in_words(self):
        other = str(self.folder / "other")
        self.run_program("ca", "init", "--dir", other)
        self.run_program("ca", "issue", "operator", "eve", "--dir", other)
        self.issue("server", "there", "--host", "127.0.0.1")
        self.issue("operator", "ann")
        tls = self.over_tls("ann")
        stranger = {"TIDEPOOL_FABRIC_CERT": f"{other}/eve.crt", "TIDEPOOL_FABRIC_KEY": f"{other}/eve.key"}
        server = {"TIDEPOOL_FABRIC_CERT": f"{self.ca}/there.crt", "TIDEPOOL_FABRIC_KEY": f"{self.ca}/there.key"}
        nobody = {"TIDEPOOL_FABRIC_CERT": "", "TIDEPOOL_FABRIC_KEY": ""}
        elsewhere = {"TIDEPOOL_FABRIC": tls["TIDEPOOL_FABRIC"].replace("127.0.0.1", "localhost")}
        for change, words in (
            ({"TIDEPOOL_FABRIC_CA": f"{other}/ca.crt"}, "the manager's certificate is not of the authority in --ca"),
            (stranger, "the manager does not know the authority of this certificate"),
            (nobody, "the manager wants a certificate"),
            (server, "this certificate is not one for clients"),
            (elsewhere, "the manager's certificate is for other names than this one"),
        ):
            for verb in (["whoami"], ["watch", "--since", "0"]):
                done = self.run_program(*verb, code=UNREACHABLE, **{**tls, **change})
                self.assertIn(words, done.stderr)
                self.assertNotIn("is it running", done.stderr)

    def test_labels_are_written_shown_and_selected_by(self):
        self.furnish()
        self.run_program("host", "set", "node1", "--label", "rack=r7", "--label", "gpu=h100")
        self.run_program("host", "set", "node2", "--label", "rack=r8")
        self.run_program("device", "set", "dev0", "--label", "slow=")
        self.run_program("host", "set", "node1", "--label", "gpu-", "--label", "zone=a")
        self.assertEqual(self.ask("host", "show", "node1")["labels"], {"rack": "r7", "zone": "a"})
        self.assertNotIn("LABELS", self.run_program("host", "list").stdout)
        wide = self.run_program("host", "list", "-o", "wide").stdout.splitlines()
        self.assertRegex(wide[0], r"LABELS$")
        self.assertRegex(wide[1], r"rack=r7,zone=a$")
        self.assertEqual(self.run_program("host", "list", "-l", "rack=r7", "-o", "name").stdout, "node1\n")
        self.assertEqual(self.run_program("host", "list", "--selector", "rack!=r7", "-o", "name").stdout, "node2\n")
        self.assertEqual(self.run_program("device", "list", "-l", "!slow", "-o", "name").stdout, "")
        listed = json.loads(self.run_program("device", "list", "-l", "slow", "-o", "json").stdout)
        self.assertEqual(listed["items"][0]["labels"], {"slow": ""})
        region = self.ask("region", "assign", "--host", "node1", "--size", "2M")["id"]
        self.run_program("region", "set", str(region), "--label", "job=train-1")
        self.assertEqual(self.run_program("region", "list", "-l", "job", "-o", "name").stdout, f"{region}\n")
        modified = str(self.ask("host", "show", "node2")["modified"])
        self.run_program("host", "set", "node2", "--label", "a=b", "--if-match", modified)
        self.run_program("host", "set", "node2", "--label", "a=c", "--if-match", modified, code=CONFLICT)
        self.assertIn("would be done", self.run_program("host", "set", "node2", "--label", "a-", "--dry-run").stdout)
        self.assertIn("nothing to do", self.run_program("host", "set", "node2", "--label", "no-").stdout)
        for bad in (["host", "set", "node1"], ["host", "set", "node1", "--label", "rack"],
                    ["host", "set", "node1", "--label", "a=b", "--label", "a-"],
                    ["host", "set", "node1", "--label", "a b=c"], ["host", "list", "-o", "xml"],
                    ["host", "list", "-l", "a b"]):
            self.run_program(*bad, code=USAGE)
        self.run_program("host", "set", "nobody", "--label", "a=b", code=NOT_FOUND)

    def test_certificates_end_visibly(self):
        self.issue("operator", "ann", "--days", "5")
        self.run_program("whoami", **self.over_tls("ann"))
        # Days are whole ones, and the last of them has begun or not.
        books = self.ask("ca", "list", "--dir", self.ca)
        for one, days in zip(books["own"] + books["items"], (3650, 3650, 365, 365, 5)):
            self.assertIn(one["days_left"], (days - 1, days))
        self.assertEqual([one["kind"] for one in books["own"]], ["ca", "crl"])
        text = self.run_program("ca", "list", "--dir", self.ca).stdout.splitlines()
        self.assertRegex(text[1], r"^own +[0-9A-F]+ +\S+ +36(49|50)d +ca:root$")
        self.assertRegex(text[5], r"^good +[0-9A-F]+ +\S+ +[45]d +operator:ann$")
        table = self.run_program("certificate", "list").stdout.splitlines()
        self.assertRegex(table[1], r"^client +operator:ann +\S+ +(4d23h|5d0h)$")
        self.assertEqual(len(table), 6)
        status = self.run_program("status").stdout
        self.assertRegex(status, r"certificates 5   the certificate of operator ann ends in (4d23h|5d0h)")
        self.assertIn("CERTIFICATE_EXPIRES_SOON", self.run_program("health").stdout)

    def test_discover_needs_no_manager_and_says_that_there_is_no_switch(self):
        classes = [one.read_text() for one in pathlib.Path("/sys/bus/pci/devices").glob("*/class")]
        if any(one.startswith("0x0c0b") for one in classes):
            return  # a machine with a switch: tests/vm/tests/cxl_switch.py
        done = self.run_program("device", "discover", "--json", TIDEPOOL_FABRIC="unix:/nowhere")
        self.assertEqual(json.loads(done.stdout), {"switches": []})
        self.assertRegex(done.stderr, r"^fabricmgr device discover: no CXL switch [^\n]*; run it where [^\n]*\n$")
        self.assertEqual(self.run_program("device", "discover").stdout, "")

    def test_a_watch_goes_on_after_a_restart(self):
        self.furnish()
        watch = subprocess.Popen(
            [PROGRAM, "watch", "--json", "--since", "0"],
            env=self.environment(),
            stdout=subprocess.PIPE,
            bufsize=0,  # select() has to see what readline() has not
        )
        try:
            first = json.loads(watch.stdout.readline())
            self.assertGreater(first["index"], 0)
            self.assertEqual(self.daemon.end(signal.SIGKILL), -signal.SIGKILL)
            self.daemon.start()
            region = self.ask("region", "assign", "--host", "node1", "--size", "2M")["id"]
            seen = []
            while select.select([watch.stdout], [], [], 20)[0]:
                event = json.loads(watch.stdout.readline())
                seen.append((event["index"], event["ordinal"]))
                if event["subject"] == "region" and event["id"] == region and event["to"] == "attached":
                    break
            else:
                self.fail("the event did not come")
            self.assertEqual(seen, sorted(set(seen)), "none twice, none out of order")
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()

    def test_it_ends_cleanly_and_starts_again(self):
        self.furnish()
        self.assertEqual(self.daemon.end(), 0)
        self.run_program("status", code=UNREACHABLE)
        self.daemon.start()
        self.assertEqual(self.ask("status")["hosts"], 2)
        second = self.run_program("serve", "--config", str(self.folder / "fabric.toml"), code=CONFLICT)
        self.assertIn("fabric", second.stderr)

    def test_services_say_that_they_are_ready_and_stop(self):
        config = self.folder / "other.toml"
        config.write_text(f'state = "{self.folder}/other.db"\n[unix]\npath = "{self.folder}/other"\n')
        self.run_program("init", "--config", str(config))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(self.folder / "notify"))
            manager.settimeout(30)
            for words in (
                ["serve", "--config", str(config)],
                ["memserver", "--listen", "127.0.0.1:0", "--size", "4M"],
            ):
                with self.subTest(words=words):
                    service = subprocess.Popen(
                        [PROGRAM, *words],
                        env=self.environment(NOTIFY_SOCKET=str(self.folder / "notify")),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                    self.assertEqual(manager.recv(100), b"READY=1")
                    service.terminate()
                    self.assertEqual(manager.recv(100), b"STOPPING=1")
                    self.assertEqual(service.wait(20), 0)

    def test_a_store_is_made_by_init_alone(self):
        config, state = self.folder / "new.toml", self.folder / "new.db"
        config.write_text(f'state = "{state}"\n[unix]\npath = "{self.folder}/new"\n')
        before = sorted(path.name for path in self.folder.iterdir())
        done = self.run_program("serve", "--config", str(config), code=NOT_FOUND)
        self.assertIn("fabricmgr init", done.stderr)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)
        self.run_program("init", "--state", f"{self.folder}/none/new.db", code=NOT_FOUND)
        self.assertFalse((self.folder / "none").exists())
        said = json.loads(self.run_program("init", "--config", str(config), "--json").stdout)
        self.assertRegex(said["fabric"], "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
        self.run_program("init", "--state", str(state), code=CONFLICT)
        other = json.loads(self.run_program("init", "--state", f"{state}2", "--json").stdout)
        self.assertNotEqual(other["fabric"], said["fabric"])

    def test_a_backup_is_made_while_it_runs_and_put_back_when_it_does_not(self):
        self.furnish()
        config, backup = ["--config", str(self.folder / "fabric.toml")], str(self.folder / "backup")
        before = self.ask("status")
        saved = json.loads(self.run_program("backup", backup, *config, "--json").stdout)
        self.assertEqual((saved["fabric"], saved["term"]), (before["fabric"], before["term"]))
        self.assertEqual(os.stat(backup).st_mode & 0o777, 0o600)
        self.run_program("backup", backup, *config, code=CONFLICT)
        self.run_program("host", "add", "later")
        self.run_program("restore", backup, *config, code=CONFLICT)
        self.assertEqual(self.daemon.end(), 0)
        self.run_program("restore", str(self.folder / "key"), *config, code=(NOT_FOUND, FAILED))
        done = json.loads(self.run_program("restore", backup, *config, "--json").stdout)
        self.assertTrue(pathlib.Path(done["replaced"]).exists())
        self.daemon.start()
        after = self.ask("status")
        self.assertEqual(after["fabric"], before["fabric"])
        self.assertGreater(after["term"], before["term"])
        self.assertEqual(after["superseded_by"], 0)
        self.assertIn(f"fabric {before['fabric']}   term {after['term']}", self.run_program("status").stdout)
        self.run_program("host", "show", "later", code=NOT_FOUND)

    def test_the_configuration_is_checked(self):
        config = str(self.folder / "fabric.toml")
        self.assertIn("good", self.run_program("serve", "--check-config", "--config", config).stdout)
        bad = self.folder / "bad.toml"
        bad.write_text("[unix]\npaht = 'x'\n")
        done = self.run_program("serve", "--check-config", "--config", str(bad), code=USAGE)
        self.assertIn(":2: unknown key 'paht'", done.stderr)
        self.run_program("serve", "--check-config", "--config", "/nowhere", code=NOT_FOUND)
        self.run_program("ca", "init", "--dir", self.ca, code=CONFLICT)
        self.run_program("ca", "issue", "wizard", "x", "--dir", self.ca, code=USAGE)
        self.run_program("ca", "revoke", "host:nobody", "--dir", self.ca, code=NOT_FOUND)

    def test_metrics_are_well_formed(self):
        self.furnish()
        import http.client

        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(f"{self.folder}/sock")
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        types, samples = {}, set()
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.assertNotIn(name, types)
                types[name] = kind
            elif not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name = series.split("{")[0]
                float(value)
                self.assertNotIn(series, samples)
                samples.add(series)
                self.assertTrue(name.startswith("tidepool_fabric_"), name)
                self.assertEqual(name.endswith("_total"), types[name] == "counter", name)


class DocumentsTest(unittest.TestCase):
    def generate(self, what):
        return subprocess.run([PROGRAM, "--generate", what], capture_output=True, text=True, check=True).stdout

    def complete(self, *words):
        script = (
            self.generate("bash")
            + f"COMP_WORDS=(fabricmgr {' '.join(repr(word) for word in words)}); COMP_CWORD={len(words)}; _fabricmgr; "
            + 'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return set(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split())

    def test_the_reference_is_up_to_date(self):
        committed = pathlib.Path(__file__).parents[2] / "docs/fabricmgr-reference.md"
        self.assertEqual(
            committed.read_text(),
            self.generate("markdown"),
            "write it again: build/release/bin/fabricmgr --generate markdown > docs/fabricmgr-reference.md",
        )

    def test_completion_offers_nouns_verbs_and_flags(self):
        self.assertLessEqual({"serve", "memserver", "ca", "status", "region", "watch"}, self.complete(""))
        self.assertEqual(self.complete("reg"), {"region"})
        self.assertLessEqual({"assign", "list", "release", "evidence"}, self.complete("region", ""))
        self.assertLessEqual({"--host", "--size", "--dry-run", "--json"}, self.complete("region", "assign", "--"))
        self.assertEqual(self.complete("region", "release", "7", "--fo"), {"--force"})

    def test_the_man_page_is_clean(self):
        page = self.generate("man")
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(page)
            file.flush()
            lint = subprocess.run(
                ["mandoc", "-T", "lint", "-W", "style", file.name], capture_output=True, text=True
            )
        self.assertEqual(lint.stdout + lint.stderr, "")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
