#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Regions from plan to evidence, moves, memory servers, many hosts at once; what dry runs and keys do.

    FABRICMGR=build/release/bin/fabricmgr regions_test.py [unittest arguments]
"""

import json
import signal
import socket
import unittest

from fabric import CONFLICT, FAILED, NOT_FOUND, REFUSED, TIMED_OUT, USAGE, FabricTest


class RegionsTest(FabricTest):
    def test_a_region_from_plan_to_evidence(self):
        self.furnish()
        wish = ["--host", "node1", "--size", "4M", "--contiguous", "--shape", "pack"]
        wish += ["--avoid-domain", "rack1", "--avoid-domain", "rack2"]
        plan = self.run_program("plan", *wish, "--json").stdout
        (self.folder / "plan.json").write_text(plan)
        self.assertRegex(self.run_program("plan", *wish).stdout, r"(?m)^extents +device_id \d+, device dev0, ")
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
        self.assertRegex(self.run_program("region", "show", region).stdout, r"(?m)^extents +device_id \d+, device dev0, ")
        wide = self.run_program("region", "list", "-o", "wide").stdout.splitlines()
        self.assertEqual(wide[1].split()[wide[0].split().index("DEVICES")], "dev0")
        self.assertRegex(self.run_program("host", "show", "node1").stdout, r"(?m)^domain +-$")
        self.assertIn("4M of 64M given out", self.run_program("status").stdout)
        hurt = self.run_program("device", "ok-to-remove", "dev0", code=REFUSED).stdout
        self.assertIn("node1", hurt)
        self.run_program("device", "remove", "dev0", code=REFUSED)
        self.run_program("region", "release", region, code=REFUSED)
        self.run_program("region", "release", region, "--force")
        evidence = self.ask("region", "evidence", region)["items"]
        self.assertEqual([one["nonzero_bytes"] for one in evidence], [0])
        table = self.run_program("region", "evidence", region).stdout.splitlines()
        self.assertEqual((table[0].split()[0], table[1].split()[0]), ("DEVICE", "dev0"))
        self.assertIn("SHA256", table[0])
        self.assertRegex(self.run_program("operation", "list").stdout, rf"(?m)^\d+ +release +done +{region} +- ")
        self.assertIn("region.apply", self.run_program("audit", "list").stdout)
        self.assertEqual(self.ask("audit", "show", "2")["items"][0]["sequence"], 2)
        self.assertIn("pool.add", self.run_program("audit", "show", "1").stdout)
        events = self.run_program("event", "list", "--since", "0").stdout
        self.assertRegex(events, r"(?m) device +\d+ +dev0 +- +added ")
        self.assertRegex(events, r"(?m) host +\d+ +node1 ")
        self.assertRegex(events, rf"(?m) region +{region} +- +node1 .* attached$")
        index = self.ask("event", "list", "--since", "0")["items"][0]["index"]
        self.assertEqual({one["index"] for one in self.ask("event", "show", str(index))["items"]}, {index})
        self.assertEqual(self.run_program("event", "show", str(index)).stdout.split()[0], "INDEX")
        self.run_program("audit", "verify")
        self.run_program("device", "ok-to-remove", "dev0")

    def test_a_region_of_a_memory_server(self):
        with self.memory_server() as (server, said):
            with socket.create_connection(("127.0.0.1", said["port"])) as stranger:
                stranger.sendall(b"TIDEPOOL" + (1).to_bytes(2, "little") * 2 + bytes(52))
                answer = stranger.recv(64, socket.MSG_WAITALL)
                self.assertEqual(int.from_bytes(answer[10:12], "little"), 5, "memory for the asking")
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


if __name__ == "__main__":
    unittest.main()
