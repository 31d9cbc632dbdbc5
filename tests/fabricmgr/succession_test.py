#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Three managers of one fabric on one etcd, all real programs: one leads, the others say who; the leader is killed,
stopped or cut off, and another one goes on with everything that was acknowledged.

    succession_test.py FABRICMGR [unittest arguments]
"""

import base64
import http.client
import itertools
import json
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

PROGRAM = None
DONE, FAILED, REFUSED, CONFLICT = 0, 1, 4, 6
PATIENCE = 120  # seconds until what has to happen counts as never happening


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Etcd:
    """Of one member. It ends with this process, however that ends."""

    def __init__(self, folder):
        self.folder = folder
        self.process = None
        self.ports = [free_port(), free_port()]
        self.tls = None  # the folder of certificates, once it is to speak that
        self.options = []  # more of them

    def certify(self):
        """An authority, and a certificate for either side."""
        self.tls = self.folder / "tls"
        self.tls.mkdir()
        (self.tls / "ext").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        for line in [f"req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=ca"] + [
            line for name in ("server", "client") for line in (
                f"req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}",
                f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile ext -out {name}.crt")]:
            subprocess.run(["openssl", *line.split()], cwd=self.tls, check=True, capture_output=True)

    def start(self):
        if self.tls:
            return self.launch("https", ["--cert-file", str(self.tls / "server.crt"),
                                         "--key-file", str(self.tls / "server.key"), "--client-cert-auth",
                                         "--trusted-ca-file", str(self.tls / "ca.crt")])
        return self.launch("http", [])

    def launch(self, scheme, more):
        client, peer = [f"{how}://127.0.0.1:{port}" for how, port in zip((scheme, "http"), self.ports)]
        words = ["setpriv", "--pdeathsig", "KILL", "etcd", "--data-dir", str(self.folder / "etcd")]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", f"default={peer}", *more, *self.options]
        context = None
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.tls / "ca.crt"))
            context.load_cert_chain(self.tls / "client.crt", self.tls / "client.key")
        with open(self.folder / "etcd.log", "a") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            assert self.process.poll() is None, "etcd has ended: is the package etcd-server installed?"
            try:
                with urllib.request.urlopen(f"{client}/health", timeout=5, context=context) as answer:
                    if json.load(answer)["health"] == "true":
                        return
            except OSError:
                pass
        raise AssertionError("etcd does not answer")

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def let_tokens_end(self, seconds):
        """From the next start on: tokens that are signed, and end so long after they were given."""
        subprocess.run(["openssl", "genrsa", "-out", "token.key", "2048"], cwd=self.folder, check=True,
                       capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", "token.key", "-pubout", "-out", "token.pub"], cwd=self.folder,
                       check=True, capture_output=True)
        self.options = ["--auth-token", f"jwt,pub-key={self.folder}/token.pub,priv-key={self.folder}/token.key,"
                                        f"sign-method=RS256,ttl={seconds}s"]

    def ask(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[0]}/v3/auth/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def make_users(self):
        """Each name is the password, too. Nobody but they is let in from now on."""
        begin, end = (base64.b64encode(key).decode() for key in (b"/fabrics/test/", b"/fabrics/test0"))
        self.ask("role/add", name="fabric")
        self.ask("role/grant", name="fabric", perm={"permType": "READWRITE", "key": begin, "range_end": end})
        for user, role in (("root", "root"), ("fabric", "fabric"), ("stranger", None)):
            self.ask("user/add", name=user, password=user)
            if role:
                self.ask("user/grant", user=user, role=role)
        self.ask("enable")


class Manager:
    def __init__(self, name, folder, etcd):
        self.name = name
        self.process = None
        self.socket = folder / f"{name}.sock"
        self.config = folder / f"{name}.toml"
        self.log = folder / f"{name}.log"
        self.config.write_text(f"""
store = "etcd://127.0.0.1:{etcd.ports[0]}/fabrics/test"
state = "{folder}/fabric.db"
[etcd]
name = "{name}"
[unix]
path = "{self.socket}"
""")

    def speak_as(self, user, password):
        """To etcd, from the next start on."""
        file = self.config.with_suffix(".password")
        file.write_text(password + "\n")
        file.chmod(0o600)
        lines = [line for line in self.config.read_text().splitlines() if not line.startswith(("user =", "password_"))]
        at = lines.index("[etcd]") + 1
        lines[at:at] = [f'user = "{user}"', f'password_file = "{file}"']
        self.config.write_text("\n".join(lines) + "\n")

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", PROGRAM, "serve", "--config", str(self.config)],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )
        assert self.process.stdout.readline().startswith("listening on"), self.log.read_text()

    def end(self, number=signal.SIGKILL):
        if self.process is None:
            return None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.process = None
        return status

    def ask(self, *words):
        return subprocess.run([PROGRAM, *words, "--fabric", f"unix:{self.socket}"], text=True, capture_output=True,
                              timeout=PATIENCE)


class Connection(http.client.HTTPConnection):
    """To a manager; it is not made anew when it has ended."""

    def __init__(self, manager):
        super().__init__("localhost", timeout=PATIENCE)
        self.auto_open = 0
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(manager.socket))

    def status(self):
        """What it answers, and the answer's headers."""
        self.request("GET", "/v1/status", headers={"Cache-Control": "no-cache"})
        answer = self.getresponse()
        answer.read()
        return answer.status, answer.headers


class ThreeManagers(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.etcd = Etcd(self.folder)
        self.etcd.start()
        self.managers = [Manager(name, self.folder, self.etcd) for name in ("red", "green", "blue")]
        subprocess.run([PROGRAM, "init", "--config", str(self.managers[0].config)], check=True,
                       stdout=subprocess.DEVNULL)
        for manager in self.managers:
            manager.start()
        self.acknowledged = set()
        leader = self.leader()
        with open(self.folder / "pool0", "wb") as pool:
            pool.truncate(64 << 20)
        self.must(leader, "pool", "add", "cxl", "--class", "cxl")
        self.must(leader, "device", "add", "dev0", "--pool", "cxl", "--address", str(self.folder / "pool0"))
        self.must(leader, "host", "add", "node1")

    def tearDown(self):
        for manager in self.managers:
            manager.end()
        self.etcd.end()
        self.temporary.cleanup()

    def must(self, manager, *words):
        done = manager.ask(*words)
        self.assertEqual(done.returncode, DONE, done.stderr + manager.log.read_text())
        return done.stdout

    def until(self, what, among=None):
        """The first manager of whom it is true, and what it said."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for manager in among or self.managers:
                if manager.process is not None and (answer := what(manager)):
                    return manager, answer
        raise AssertionError("\n".join(m.name + ": " + m.log.read_text() for m in self.managers))

    def leader(self, among=None):
        return self.until(lambda manager: manager.ask("status").returncode == DONE, among)[0]

    def assign(self, manager):
        done = manager.ask("region", "assign", "--host", "node1", "--size", "2M", "--json")
        if done.returncode != DONE:
            return None
        region = json.loads(done.stdout)["id"]
        self.acknowledged.add(region)
        return region

    def check_nothing_is_lost(self, leader):
        listed = json.loads(self.must(leader, "region", "list", "--json"))["items"]
        there = {region["id"] for region in listed if region["state"] == "attached"}
        self.assertLessEqual(self.acknowledged, there)
        self.must(leader, "audit", "verify")

    def check_stands_by(self, manager, leader):
        def stands_by(one):
            said = one.ask("status")
            return said.returncode == FAILED and f"stands by, {leader.name} leads" in said.stderr
        self.until(stands_by, [manager])
        self.assertEqual(manager.ask("health").returncode, FAILED)

    def everywhere(self, *words):
        """Asks the manager that leads, through all addresses."""
        places = ",".join(f"unix:{manager.socket}" for manager in self.managers)
        return subprocess.run([PROGRAM, *words, "--fabric", places], text=True, capture_output=True, timeout=PATIENCE)

    def others(self, leader):
        return [manager for manager in self.managers if manager is not leader]


class SuccessionTest(ThreeManagers):
    def test_the_leader_is_killed_again_and_again(self):
        terms = []
        for _ in range(4):
            leader = self.leader()
            terms.append(json.loads(self.must(leader, "status", "--json"))["term"])
            for other in self.others(leader):
                self.check_stands_by(other, leader)
            for _ in range(3):
                self.assertIsNotNone(self.assign(leader))
            start = time.monotonic()
            leader.end()
            following, _ = self.until(self.assign, self.others(leader))
            print(f"writes are accepted again after {time.monotonic() - start:.2f} s")
            self.check_nothing_is_lost(following)
            for _ in range(2):  # with one of them dead, and then with all three
                term = json.loads(self.everywhere("status", "--json").stdout)["term"]
                self.assertEqual(term, json.loads(self.must(following, "status", "--json"))["term"])
                if leader.process is None:
                    leader.start()
            self.check_stands_by(leader, following)
        self.assertEqual(terms, sorted(set(terms)), "each leader has a term of its own")

    def test_a_leader_that_ends_hands_over(self):
        leader = self.leader()
        self.assign(leader)
        self.assertEqual(leader.end(signal.SIGTERM), 0)
        following, _ = self.until(self.assign, self.others(leader))
        self.check_nothing_is_lost(following)

    def test_connections_to_who_stands_by_outlive_its_becoming_the_leader(self):
        leader = self.leader()
        term = json.loads(self.must(leader, "status", "--json"))["term"]
        kept = {other: Connection(other) for other in self.others(leader)}
        for connection in kept.values():
            self.addCleanup(connection.close)
            self.assertEqual(connection.status()[0], 503)
        leader.end()
        following = self.leader(kept)
        answer, headers = kept[following].status()
        self.assertEqual(answer, 200)
        self.assertGreater(int(headers["Tidepool-Term"]), term)

    def test_a_leader_that_was_stopped_stands_by(self):
        leader = self.leader()
        self.assertIsNotNone(self.assign(leader))
        leader.process.send_signal(signal.SIGSTOP)
        # The pool's file is locked by who is stopped: the next one leads, but without that device.
        following = self.leader(self.others(leader))
        self.must(following, "host", "add", "node2")
        leader.process.send_signal(signal.SIGCONT)
        self.assertNotEqual(leader.ask("host", "add", "node3").returncode, DONE)
        self.check_stands_by(leader, following)
        self.until(self.assign, [following])
        self.check_nothing_is_lost(following)
        self.assertNotIn("node3", self.must(following, "host", "list"))

    def test_reads_go_on_while_etcd_is_away_and_writes_say_so(self):
        leader = self.leader()
        self.assertIsNotNone(self.assign(leader))
        self.etcd.end()
        self.check_nothing_is_lost_in_memory(leader)
        said = leader.ask("host", "add", "node2")
        self.assertNotEqual(said.returncode, DONE)
        self.assertIn("etcd", said.stderr)
        self.assertIn(str(self.etcd.ports[0]), said.stderr)
        self.etcd.start()
        following, _ = self.until(self.assign)
        self.check_nothing_is_lost(following)

    def check_nothing_is_lost_in_memory(self, leader):
        # Until it knows that its lead may be over, it would try; then it refuses, and still shows what it has.
        self.until(lambda one: "nothing is changed" in one.log.read_text(), [leader])
        listed = json.loads(self.must(leader, "region", "list", "--json"))["items"]
        self.assertLessEqual(self.acknowledged, {region["id"] for region in listed})
        self.assertIn("STORE_AWAY", leader.ask("health").stdout)

    def migrate(self, to, code=DONE):
        done = subprocess.run([PROGRAM, "migrate-store", "--config", str(self.managers[0].config), to, "--json"],
                              text=True, capture_output=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout) if code == DONE else done.stderr

    def test_the_store_moves_into_a_file_and_back(self):
        leader = self.leader()
        self.assertIsNotNone(self.assign(leader))
        self.assertIn(leader.name, self.migrate("file", CONFLICT))
        for manager in self.managers:
            self.assertEqual(manager.end(signal.SIGTERM), 0)
        there = self.migrate("file")
        red = self.managers[0]
        in_etcd = red.config.read_text()
        red.config.write_text("".join(line for line in in_etcd.splitlines(True) if not line.startswith("store =")))
        red.start()
        self.assertIsNotNone(self.assign(red))
        self.check_nothing_is_lost(red)
        red.end(signal.SIGTERM)
        red.config.write_text(in_etcd)
        self.migrate("etcd", CONFLICT)  # the old one is there
        red.config.write_text(in_etcd.replace("/fabrics/test", "/fabrics/again"))
        back = self.migrate("etcd")
        self.assertEqual(back["fabric"], there["fabric"])
        self.assertGreater(back["term"], there["term"])
        red.start()
        self.assertIsNotNone(self.assign(red))
        self.check_nothing_is_lost(red)

    def test_etcd_is_spoken_to_over_tls(self):
        for manager in self.managers:
            manager.end()
        self.etcd.end()
        self.etcd.certify()
        self.etcd.start()
        red = self.managers[0]
        without = subprocess.run([PROGRAM, "serve", "--config", str(red.config)], text=True, capture_output=True)
        self.assertEqual(without.returncode, FAILED)
        self.assertIn(f"etcd at 127.0.0.1:{self.etcd.ports[0]} does not answer", without.stderr)
        tls = self.etcd.tls
        files = f'certificate = "{tls}/client.crt"\nkey = "{tls}/client.key"\nca = "{tls}/ca.crt"\n'
        red.config.write_text(red.config.read_text().replace("[etcd]\n", "[etcd]\n" + files))
        red.start()
        self.until(lambda one: one.ask("host", "add", "node2").returncode == DONE, [red])

    def start_again_with_users(self):
        """Managers that speak as a user of an etcd that is yet to have any."""
        for manager in self.managers:
            manager.end()
            manager.speak_as("fabric", "fabric")
        self.etcd.end()
        self.etcd.let_tokens_end(2)
        self.etcd.start()
        for manager in self.managers:
            manager.start()

    def test_etcd_gets_users_and_tokens_end(self):
        self.start_again_with_users()
        self.assertIsNotNone(self.assign(self.leader()))
        self.etcd.make_users()
        leader = self.leader()
        until = time.monotonic() + 7  # some tokens' time
        for number in itertools.count():
            self.must(leader, "host", "set", "node1", "--label", f"n={number}")
            if time.monotonic() > until:
                break
        self.assertIsNotNone(self.assign(leader))
        self.check_nothing_is_lost(leader)
        for other in self.others(leader):  # what it reads is kept up to date by a watch
            newest = f"region show {max(self.acknowledged)}".split()
            self.until(lambda one: one.ask(*newest, "--stale").returncode == DONE, [other])
        leader.end()
        following, _ = self.until(self.assign, self.others(leader))
        self.etcd.end()
        self.etcd.start()
        following, _ = self.until(self.assign)
        self.check_nothing_is_lost(following)

    def test_who_is_not_let_into_etcd_hears_why(self):
        self.start_again_with_users()
        self.etcd.make_users()
        red = self.managers[0]
        for user, password, words in (("fabric", "wrong", "invalid user ID or password"),
                                      ("nobody", "nobody", "invalid user ID or password"),
                                      ("stranger", "stranger", "permission denied")):
            red.end()
            red.speak_as(user, password)
            said = subprocess.run([PROGRAM, "serve", "--config", str(red.config)], text=True, capture_output=True)
            self.assertEqual(said.returncode, REFUSED, said.stderr)
            self.assertIn(words, said.stderr)
            self.assertIn(f"as user '{user}'", said.stderr)
            self.assertIn("password_file", said.stderr)
        in_etcd = red.config.read_text()
        red.config.write_text("".join(line for line in in_etcd.splitlines(True)
                                      if not line.startswith(("user =", "password_file ="))))
        said = subprocess.run([PROGRAM, "serve", "--config", str(red.config)], text=True, capture_output=True)
        self.assertEqual(said.returncode, REFUSED, said.stderr)
        self.assertIn("user name is empty", said.stderr)
        self.assertIn("password_file", said.stderr)
        red.speak_as("fabric", "fabric")
        red.config.with_suffix(".password").chmod(0o644)
        said = subprocess.run([PROGRAM, "serve", "--config", str(red.config), "--check-config"], text=True,
                              capture_output=True)
        self.assertEqual(said.returncode, REFUSED, said.stderr)
        self.assertIn("others can read that password", said.stderr)

    def test_a_store_in_etcd_is_made_once_and_saved_by_etcd(self):
        config = str(self.managers[0].config)
        again = subprocess.run([PROGRAM, "init", "--config", config], text=True, capture_output=True)
        self.assertEqual(again.returncode, CONFLICT)
        self.assertIn("there already", again.stderr)
        saved = subprocess.run([PROGRAM, "backup", "--config", config, str(self.folder / "b")], text=True,
                               capture_output=True)
        self.assertEqual(saved.returncode, FAILED)
        self.assertIn("etcdctl snapshot save", saved.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
