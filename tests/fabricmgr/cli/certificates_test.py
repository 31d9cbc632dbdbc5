#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Roles, revocation, and certificates that end or are wrong, over mutual TLS.

    FABRICMGR=build/release/bin/fabricmgr certificates_test.py [unittest arguments]
"""

import pathlib
import signal
import subprocess
import unittest

from fabric import DONE, FAILED, PROGRAM, REFUSED, UNREACHABLE, FabricTest


class CertificatesTest(FabricTest):
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

    def test_an_agent_whose_certificate_is_revoked_says_so(self):
        self.furnish()
        log = self.folder / "node1.log"
        # Its heartbeat would be due in minutes, so long is its lease: it finds out before.
        with self.agent("node1") as status:
            self.until(lambda: status()["manager"] == "member", log)
            self.run_program("ca", "revoke", "host:node1", "--dir", self.ca)
            self.reload("certificates and revocations read again")
            self.until(lambda: status()["manager"] == "refused", log)
            self.assertIn("the manager says that this certificate is revoked", status()["trouble"])
            self.assertEqual(status()["health"], "error")
            doctor = pathlib.Path(PROGRAM).with_name("tidepool")
            if doctor.exists():
                said = subprocess.run(
                    [doctor, "doctor", "--far", "fabric"],
                    env=self.environment(TIDEPOOL_AGENT=f"{self.folder}/node1.sock"),
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertRegex(said.stdout, r"no contact to its manager \(refused\).* certificate is revoked")
        self.assertRegex(log.read_text(), r"does not take this agent for that of host node1.* certificate is revoked")
        managers = (self.folder / "log").read_text()
        self.assertIn("host:node1: certificate revoked", managers)
        for text in (log.read_text(), managers):
            self.assertNotIn("Broken pipe", text)

    def test_a_reload_that_fails_changes_nothing_at_all(self):
        self.run_program("host", "add", "node1", "--lease", "10m")
        assign = ("region", "assign", "--host", "node1", "--size", "4M", "--class", "remote")
        certificate = pathlib.Path(self.ca, "manager.crt")
        good = certificate.read_bytes()
        with self.memory_server():
            self.run_program(*assign)
            self.run_program("ca", "revoke", "memserver:mem0", "--dir", self.ca)
            certificate.write_bytes(good[:100])
            self.reload("the old certificates stay in use: cannot use the certificate")
            self.run_program(*assign)  # the new list is not in use either
            certificate.write_bytes(good)
            self.reload("certificates and revocations read again")
            self.run_program(*assign, code=(FAILED, REFUSED))

    def test_keys_that_others_can_read_are_not_used(self):
        for kind, name in (("operator", "ann"), ("host", "node1"), ("memserver", "mem0")):
            self.issue(kind, name)
        tls = self.over_tls("ann")
        node = ["--fabric", tls["TIDEPOOL_FABRIC"], "--ca", f"{self.ca}/ca.crt", "--cert", f"{self.ca}/node1.crt"]
        served = ["--listen", "127.0.0.1:0", "--size", "1M", "--control", "127.0.0.1:0", "--ca", f"{self.ca}/ca.crt"]
        users = {
            "ann": ["whoami"],
            "node1": ["agent", "--host", "node1", "--socket", f"{self.folder}/agent.sock", "--key", f"{self.ca}/node1.key"]
            + ["--journal", f"{self.folder}/journal"] + node,
            "mem0": ["memserver", "--cert", f"{self.ca}/mem0.crt", "--key", f"{self.ca}/mem0.key"] + served,
            "manager": ["serve", "--check-config", "--config", f"{self.folder}/fabric.toml"],
            "main": ["serve", "--check-config", "--config", f"{self.folder}/fabric.toml"],
            "ca": ["ca", "issue", "operator", "bob", "--dir", self.ca],
        }
        for name, words in users.items():
            key = pathlib.Path(self.ca, f"{name}.key")
            self.assertEqual(key.stat().st_mode & 0o777, 0o600)
            key.chmod(0o644)
            done = self.run_program(*words, code=(REFUSED, FAILED), **tls)
            self.assertIn(f"`chmod 600 {key}`", done.stderr)
            key.chmod(0o600)
        self.run_program("whoami", **tls)
        pathlib.Path(self.ca, "manager.key").chmod(0o660)
        self.reload("the old certificates stay in use: `chmod 600 ")
        self.run_program("whoami", **tls)

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

    def test_the_certificates_of_memory_servers_end_visibly(self):
        renew = ("ca", "renew", f"{self.ca}/mem0.crt", "--dir", self.ca, "--days")
        with self.memory_server("--days", "5") as (server, _):
            self.until(lambda: "memserver:mem0" in self.left(), self.folder / "log")
            table = self.run_program("certificate", "list").stdout.splitlines()
            self.assertRegex(table[1], r"^memserver +memserver:mem0 +\S+ +(4d23h|5d0h)$")
            health = self.run_program("health").stdout
            self.assertRegex(health, r"CERTIFICATE_EXPIRES_SOON.* of memory server mem0 ends in [45] days")
            self.assertRegex(self.metrics(), r'left_seconds\{kind="memserver",name="memserver:mem0"\} 43\d{4}\n')
            self.run_program(*renew, "300")
            server.send_signal(signal.SIGHUP)
            log = self.folder / "mem0.log"
            self.until(lambda: "read again" in log.read_text(), log)
            self.assertIn("of memory server mem0 ends in", log.read_text())
            self.reload("certificates and revocations read again")
            self.until(lambda: self.left().get("memserver:mem0", 0) > 290 * 86_400_000, self.folder / "log")
            self.assertNotIn("memory server mem0", self.run_program("health").stdout)

    def left(self):
        return {one["name"]: one["left_ms"] for one in self.ask("certificate", "list")["items"]}


if __name__ == "__main__":
    unittest.main()
