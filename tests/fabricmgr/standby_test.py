#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What managers that stand by show while another one leads: the same as that one, as of an index that they say, also
over a change of the leader and while etcd is away; to the same people; and nothing that only who leads can know.

    standby_test.py FABRICMGR [unittest arguments]
"""

import concurrent.futures
import http.client
import itertools
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import unittest

import succession_test
from succession_test import DONE, PATIENCE, ThreeManagers

STANDING_BY = "urn:tidepool:problem:standing-by"
LEADERS_ALONE = {"lease_left_ms", "drain_left_ms", "health", "trouble"}


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()
        self.index = int(response.headers.get("Tidepool-Index", 0))

    def json(self):
        return json.loads(self.text)

    def stands_by(self):
        return self.status == 503 and self.json()["type"] == STANDING_BY


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def exchange(connection, method, path, body=None, **headers):
    headers = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    if body is not None:
        body = json.dumps(body)
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def ask(manager, method, path, body=None, **headers):
    return exchange(UnixConnection(manager.socket), method, path, body, **headers)


def get(manager, path, **headers):
    return ask(manager, "GET", path, **headers)


OF_HTTP = {"Date", "Content-Type", "Content-Length", "Cache-Control", "Connection"}


class Document:
    """What the API's document says of answers."""

    def __init__(self, document):
        self.document = document

    def unsaid(self, method, path, answer):
        """Headers that it knows nothing of. A path that is none has no answer in it."""
        path = path.split("?")[0]
        for pattern, methods in self.document["paths"].items():
            if method.lower() in methods and re.fullmatch(re.sub("{[^}]*}", "[^/]+", pattern), path):
                responses = methods[method.lower()]["responses"]
                response = responses.get(str(answer.status), responses["default"])
                if "$ref" in response:
                    response = self.document["components"]["responses"][response["$ref"].split("/")[-1]]
                return set(answer.headers.keys()) - OF_HTTP - set(response["headers"])
        return set()


def known_to_all(value):
    if isinstance(value, dict):
        return {name: known_to_all(member) for name, member in value.items() if name not in LEADERS_ALONE}
    return [known_to_all(member) for member in value] if isinstance(value, list) else value


class StandbyTest(ThreeManagers):
    def shows(self, manager):
        """Once it has read the store."""
        self.until(lambda one: get(one, "/v1/pools").status == 200, [manager])

    def age(self, manager):
        """In seconds; -1: it shows nothing."""
        said = re.search("the latest one ([0-9]+) s ago", manager.ask("region", "list", "--stale").stderr)
        return int(said[1]) if said else -1

    def write(self, number):
        """By the leader, once there is one; the index of the change. Not so often that it would be refused."""
        def written(manager):
            done = manager.ask("host", "set", "node1", "--label", f"n={number}", "--json")
            return json.loads(done.stdout)["index"] if done.returncode == DONE else None
        return self.until(written)[1]

    def test_reads_are_the_leaders_once_the_index_is_reached(self):
        leader = self.leader()
        for other in self.others(leader):
            self.shows(other)
        kept, freed = self.assign(leader), self.assign(leader)
        self.must(leader, "region", "release", str(freed), "--force")
        self.acknowledged.discard(freed)
        labelled = ask(leader, "PATCH", "/v1/hosts/node1", {"labels": {"rack": "r7"}})
        self.assertGreaterEqual(labelled.index, labelled.json()["index"])
        operation = json.loads(self.must(leader, "operation", "list", "--json"))["items"][0]["id"]
        index = get(leader, "/v1/regions").index
        self.assertGreater(index, 0)
        paths = ["/v1/pools", "/v1/pools/cxl", "/v1/devices", "/v1/devices/dev0", "/v1/devices/dev0/removal",
                 "/v1/hosts", "/v1/hosts?selector=rack%3Dr7", "/v1/hosts/node1", "/v1/hosts/node1/removal",
                 "/v1/regions", f"/v1/regions/{kept}", f"/v1/regions/{freed}/evidence", "/v1/operations",
                 f"/v1/operations/{operation}", "/v1/events?since=0", "/v1/audit", "/v1/audit/verification",
                 "/v1/whoami", "/v1/openapi.json",
                 "/v1/hosts/nobody", f"/v1/regions/{freed}", "/v1/regions?limit=0", "/v1/nothing"]
        document = Document(get(leader, "/v1/openapi.json").json())
        for path, other in itertools.product(paths, self.others(leader)):
            for method in ("GET", "POST"):
                answer = ask(other, method, path, {} if method == "POST" else None)
                self.assertEqual(document.unsaid(method, path, answer), set(), f"{method} {path}")
            expected, answer = get(leader, path), get(other, path, Tidepool_Index=index)
            self.assertEqual(answer.status, expected.status, path + answer.text)
            self.assertEqual(known_to_all(answer.json()), known_to_all(expected.json()), path)
            self.assertGreaterEqual(answer.index, index)
            self.assertGreaterEqual(int(answer.headers["Age"]), 0)
            self.assertIsNone(expected.headers["Age"])
            for name in ("Tidepool-Fabric", "Tidepool-Term"):
                self.assertEqual(answer.headers[name], expected.headers[name])
        status, metrics = get(other, "/v1/status").json(), get(other, "/metrics").text
        self.assertEqual(status["attached"], 1)
        self.assertNotIn("unreachable_devices", status)
        self.assertIn(f"tidepool_fabric_index {index}\n", metrics)
        self.assertNotIn("tidepool_fabric_devices_unreachable", metrics)
        said = other.ask("host", "list", "--stale")
        self.assertEqual(said.returncode, DONE, said.stderr)
        self.assertIn(f"as of index {index}, the latest one", said.stderr)
        self.assertIn("node1", said.stdout)

    def test_what_only_who_leads_knows_is_asked_there(self):
        leader = self.leader()
        other = self.others(leader)[0]
        self.shows(other)
        self.assertTrue(ask(other, "POST", "/v1/hosts", {"name": "node9"}).stands_by())
        self.assertTrue(get(other, "/v1/health").stands_by(), "load balancers ask for it")
        self.assertTrue(get(other, "/v1/hosts", Cache_Control="no-cache").stands_by())
        self.assertTrue(get(other, "/v1/regions", Tidepool_Host="node1").stands_by(), "an agent acts on what it reads")
        self.assertEqual(get(leader, "/v1/regions", Tidepool_Host="node1", Cache_Control="no-cache").status, 200)
        future = get(other, "/v1/hosts", Tidepool_Index=1 << 60)
        self.assertTrue(future.stands_by())
        self.assertIn("up to index", future.json()["detail"])
        self.assertTrue(get(other, f"/v1/events?since={1 << 60}").stands_by())
        for bad in ("", "x", "-1", "1.5", str(1 << 64)):
            self.assertEqual(get(other, "/v1/hosts", Tidepool_Index=bad).status, 400, bad)

    def test_nobody_goes_back_whoever_answers_and_whoever_dies(self):
        answered = 0
        dead = None
        for number in range(1, 61):
            if number == 20:
                dead = self.leader()
                dead.end()
            if number == 40:
                dead.start()
            seen = self.write(number)
            for manager in self.managers:
                if manager.process is None:
                    continue
                answer = get(manager, "/v1/hosts/node1", Tidepool_Index=seen)
                if answer.status == 503:
                    self.assertTrue(answer.stands_by())
                    continue
                self.assertEqual(answer.json()["labels"]["n"], str(number))
                self.assertGreaterEqual(answer.index, seen)
                seen = answer.index
                answered += answer.headers["Age"] is not None
        self.assertGreater(answered, 0, "those that stand by answer")

    def test_writes_succeed_through_any_address(self):
        places = [f"unix:{manager.socket}" for manager in self.managers]
        for number, order in enumerate(itertools.permutations(places)):
            done = subprocess.run([succession_test.PROGRAM, "host", "add", f"more{number}", "--fabric", ",".join(order)],
                                  text=True, capture_output=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, DONE, done.stderr)

    def test_who_waits_for_events_gets_them_or_is_let_go(self):
        leader = self.leader()
        others = self.others(leader)
        for other in others:
            self.shows(other)
        index = get(leader, "/v1/hosts").index
        waiting = f"/v1/events?since={index}&wait_ms=60000"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            first = [pool.submit(get, other, waiting) for other in others]
            self.must(leader, "host", "add", "node2")
            for answer in (one.result(PATIENCE) for one in first):
                self.assertEqual([event["what"] for event in answer.json()["items"]], ["added"])
                index = answer.index
            second = [pool.submit(get, other, f"/v1/events?since={index}&wait_ms=60000") for other in others]
            for other in others:
                self.until(lambda one: get(one, "/v1/status").json().get("watchers") == 1, [other])
            leader.end(signal.SIGTERM)
            following = self.leader(others)
            self.must(following, "host", "add", "node3")
            for answer in (one.result(PATIENCE) for one in second):
                # Who waits where the lead is taken is answered with nothing, and asks again.
                self.assertEqual(answer.status, 200)

    def test_while_etcd_is_away_what_is_known_is_shown_and_how_old_it_is(self):
        leader = self.leader()
        self.assertIsNotNone(self.assign(leader))
        other = self.others(leader)[0]
        self.shows(other)
        before = get(other, "/v1/regions", Tidepool_Index=get(leader, "/v1/regions").index)
        self.etcd.end()
        self.until(lambda one: self.age(one) >= 3, [other])
        after = get(other, "/v1/regions")
        self.assertEqual((after.index, after.json()), (before.index, before.json()))
        said = other.ask("region", "list", "--stale")
        self.assertEqual(said.returncode, DONE, said.stderr)
        self.assertRegex(said.stderr, f"as of index {before.index}, the latest one [1-9][0-9]* s ago")
        self.assertTrue(ask(other, "POST", "/v1/hosts", {"name": "node9"}).stands_by())
        refused = self.everywhere("host", "add", "node9")
        self.assertNotEqual(refused.returncode, DONE)
        self.assertIn("not up to date", other.log.read_text())
        self.etcd.start()
        following, _ = self.until(self.assign)
        for one in self.others(following):
            self.until(lambda one: 0 <= self.age(one) < 3, [one])
            listed = get(one, "/v1/regions", Tidepool_Index=get(following, "/v1/regions").index).json()["items"]
            self.assertLessEqual(self.acknowledged, {region["id"] for region in listed})


class TlsTest(ThreeManagers):
    """The same people may read the same at each, and who is revoked may nowhere."""

    def fabricmgr(self, *words):
        subprocess.run([succession_test.PROGRAM, *words], check=True, capture_output=True)

    def start_over_tls(self):
        authority = self.folder / "ca"
        self.fabricmgr("ca", "init", "--dir", str(authority))
        for kind, name in (("operator", "ann"), ("viewer", "vic"), ("host", "node1")):
            self.fabricmgr("ca", "issue", kind, name, "--dir", str(authority))
        self.fabricmgr("ca", "issue", "server", "manager", "--host", "127.0.0.1", "--dir", str(authority))
        for manager in self.managers:
            manager.end(signal.SIGTERM)
            manager.port = succession_test.free_port()
            place = f"https://127.0.0.1:{manager.port}"
            manager.config.write_text(manager.config.read_text().replace(
                f'name = "{manager.name}"', f'name = "{place}"') + f"""
[tcp]
listen = "127.0.0.1:{manager.port}"
certificate = "{authority}/manager.crt"
key = "{authority}/manager.key"
ca = "{authority}/ca.crt"
crl = "{authority}/crl.pem"
""")
            manager.name = place
        for manager in self.managers:
            manager.start()

    def connection(self, manager, who):
        context = ssl.create_default_context(cafile=str(self.folder / "ca/ca.crt"))
        context.load_cert_chain(self.folder / f"ca/{who}.crt", self.folder / f"ca/{who}.key")
        return http.client.HTTPSConnection("127.0.0.1", manager.port, timeout=PATIENCE, context=context)

    def get(self, manager, path, who, **headers):
        return exchange(self.connection(manager, who), "GET", path, **headers)

    def refuses(self, manager, who):
        try:
            self.get(manager, "/v1/hosts", who)
        except OSError:
            return True
        return False

    def test_the_same_people_may_read_the_same(self):
        self.start_over_tls()
        leader = self.leader()
        others = self.others(leader)
        for manager in self.managers:
            self.until(lambda one: self.get(one, "/v1/hosts", "vic").status == 200, [manager])
        for other, who, path in itertools.product(others, ("ann", "vic"), ("/v1/whoami", "/v1/audit", "/v1/hosts",
                                                                           "/v1/regions/1/access")):
            expected, answer = self.get(leader, path, who), self.get(other, path, who)
            self.assertEqual((answer.status, known_to_all(answer.json())),
                             (expected.status, known_to_all(expected.json())), f"{who} {path}")
        self.assertEqual(self.get(others[0], "/v1/audit", "vic").status, 403)
        agents = self.get(others[0], "/v1/regions?host=node1&limit=5", "node1")
        self.assertTrue(agents.stands_by())
        self.assertEqual(agents.headers["Location"], f"{leader.name}/v1/regions?host=node1&limit=5")
        document = Document(self.get(others[0], "/v1/openapi.json", "vic").json())
        self.assertEqual(document.unsaid("GET", "/v1/regions", agents), set())
        self.fabricmgr("ca", "revoke", "operator:ann", "--dir", str(self.folder / "ca"))
        for manager in self.managers:
            manager.process.send_signal(signal.SIGHUP)
            self.until(lambda one: self.refuses(one, "ann"), [manager])
            self.assertFalse(self.refuses(manager, "vic"))

    def test_who_is_revoked_loses_a_connection_that_outlived_the_succession(self):
        self.start_over_tls()
        leader = self.leader()
        kept = {other: [self.connection(other, who) for who in ("ann", "vic")] for other in self.others(leader)}

        def status(connection):
            connection.request("GET", "/v1/status", headers={"Cache-Control": "no-cache"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        for connection in itertools.chain(*kept.values()):
            self.addCleanup(connection.close)
            self.assertEqual(status(connection), 503)
            connection.auto_open = 0  # it is not made anew
        leader.end()
        following = self.leader(kept)
        ann, vic = kept[following]
        self.assertEqual(status(ann), 200)
        self.fabricmgr("ca", "revoke", "operator:ann", "--dir", str(self.folder / "ca"))
        following.process.send_signal(signal.SIGHUP)

        def is_cut_off(_):
            try:
                return status(ann) == 0
            except (OSError, http.client.HTTPException):
                return True
        self.until(is_cut_off, [following])
        self.assertEqual(status(vic), 200)

    def test_etcd_is_watched_over_tls(self):
        for manager in self.managers:
            manager.end()
        self.etcd.end()
        self.etcd.certify()
        self.etcd.start()
        tls = self.etcd.tls
        files = f'certificate = "{tls}/client.crt"\nkey = "{tls}/client.key"\nca = "{tls}/ca.crt"\n'
        for manager in self.managers[:2]:
            manager.config.write_text(manager.config.read_text().replace("[etcd]\n", "[etcd]\n" + files))
            manager.start()
        leader = self.leader()
        other = next(one for one in self.managers[:2] if one is not leader)
        self.until(lambda one: get(one, "/v1/pools").status == 200, [other])
        self.must(leader, "host", "add", "node2")
        seen = get(other, "/v1/hosts/node2", Tidepool_Index=get(leader, "/v1/hosts").index)
        self.assertEqual(seen.status, 200, seen.text)


if __name__ == "__main__":
    succession_test.PROGRAM = sys.argv.pop(1)
    unittest.main()
