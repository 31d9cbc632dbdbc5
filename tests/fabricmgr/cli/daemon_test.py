#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon itself: starts, restarts, watches that go on, its store, backups, configuration and metrics.

    FABRICMGR=build/release/bin/fabricmgr daemon_test.py [unittest arguments]
"""

import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import unittest

from fabric import CONFLICT, FAILED, NOT_FOUND, PROGRAM, UNREACHABLE, USAGE, FabricTest


class DaemonTest(FabricTest):
    def test_of_several_managers_one_that_answers_is_asked(self):
        self.furnish()
        nobody, here = f"unix:{self.folder}/nobody", f"unix:{self.folder}/sock"
        self.assertIn("node1", self.run_program("host", "list", TIDEPOOL_FABRIC=f"{nobody},{here}").stdout)
        self.run_program("host", "add", "node3", "--fabric", f"{nobody},{here}")
        done = self.run_program("status", "--fabric", f"{nobody},{here}less", code=UNREACHABLE)
        self.assertRegex(
            done.stderr,
            rf"at {nobody},{here}less: {nobody}: cannot connect[^;]+; {here}less: [^;]+; is it running",
        )
        self.run_program("status", "--fabric", f"{nobody},,{here}", code=USAGE)

    def test_a_watch_goes_on_after_a_restart(self):
        self.watch_through_a_restart("sock")

    def test_a_watch_goes_on_at_another_manager(self):
        self.watch_through_a_restart("elsewhere")

    def watch_through_a_restart(self, where):
        self.furnish()
        config = self.folder / "fabric.toml"
        then = f"unix:{self.folder}/{where}"
        watch = subprocess.Popen(
            [PROGRAM, "watch", "--json", "--since", "0"],
            env=self.environment(TIDEPOOL_FABRIC=f"unix:{self.folder}/sock,{then}"),
            stdout=subprocess.PIPE,
            bufsize=0,  # select() has to see what readline() has not
        )
        try:
            first = json.loads(watch.stdout.readline())
            self.assertGreater(first["index"], 0)
            self.assertEqual(self.daemon.end(signal.SIGKILL), -signal.SIGKILL)
            config.write_text(config.read_text().replace(f"{self.folder}/sock", f"{self.folder}/{where}"))
            self.daemon.start()
            assign = ("region", "assign", "--host", "node1", "--size", "2M")
            region = self.ask(*assign, TIDEPOOL_FABRIC=then)["id"]
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
        types, samples = {}, set()
        for line in self.metrics().splitlines():
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


if __name__ == "__main__":
    unittest.main()
