#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The audit, exported and shortened: whole, and a chain.

    FABRICMGR=build/release/bin/fabricmgr audit_test.py [unittest arguments]
"""

import csv
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import unittest

from fabric import CONFLICT, FAILED, NOT_FOUND, PROGRAM, REFUSED, UNREACHABLE, USAGE, FabricTest


class AuditTest(FabricTest):
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


if __name__ == "__main__":
    unittest.main()
