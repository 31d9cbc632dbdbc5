# SPDX-License-Identifier: Apache-2.0
"""What callers did and were told, and how they ask: one request to one manager, or the same change to all in turn until
it is known what became of it. Thread-safe."""

import http.client
import json
import socket
import threading
import time
import uuid
from typing import NamedTuple

from linearizable import NEVER

STANDS_BY = "urn:tidepool:problem:standing-by"
PATIENCE = 4  # seconds for one answer; then the next one is asked: a change waits up to ten for etcd
OK, FAILED, UNKNOWN, ELSEWHERE = "ok", "failed", "unknown", "elsewhere"


class Record(NamedTuple):
    start: float
    end: float  # NEVER: the outcome is unknown
    what: tuple  # verb and arguments; of a read, what was shown
    region: int
    outcome: str
    index: int = 0  # of a change that was made
    term: int = 0
    why: str = ""  # it was refused
    old: bool = False  # a read at a manager that stands by: it may be behind


class Answer(NamedTuple):
    outcome: str
    document: dict
    term: int = 0
    old: bool = False

    @property
    def code(self):
        return self.document.get("code", "")


class OneManager(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self.path))


def ask(path, method, target, body=None, key=None, latest=True):
    """Of one manager, through its socket. `latest`: not what one that stands by has read."""
    connection = OneManager(path)
    try:
        connection.connect()
    except OSError:
        connection.close()
        return Answer(ELSEWHERE, {})
    try:
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {}),
                   **({"Cache-Control": "no-cache"} if latest else {})}
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        got = connection.getresponse()
        text = got.read()
    except (OSError, http.client.HTTPException):
        return Answer(UNKNOWN, {})
    finally:
        connection.close()
    document = json.loads(text) if text else {}
    old = "Age" in got.headers
    outcome = ELSEWHERE if old and latest else outcome_of(got.status, document)
    return Answer(outcome, document, int(got.headers.get("Tidepool-Term") or 0), old)


def outcome_of(status, document):
    if status < 300:
        return OK
    if document.get("type") == STANDS_BY or status == 429:
        return ELSEWHERE
    return FAILED if status < 500 or status == 507 else UNKNOWN


class Recorder:
    def __init__(self, sockets, pause=0.05):
        """`pause`: seconds between two rounds through all of them."""
        self.sockets = list(sockets)
        self.pause = pause
        self.lock = threading.Lock()
        self.records = []
        self.last = 0  # which manager answered

    def change(self, target, body, until, method="POST"):
        """One change, at the leader, with one key, until an answer counts, or time.monotonic() is `until`: nobody
        knows then what became of it, if a manager has taken it."""
        key = str(uuid.uuid4())
        start = time.monotonic()
        unknown = False
        while True:
            for answer in self.everywhere(lambda path: ask(path, method, target, body, key)):
                if answer.outcome == OK or answer.outcome == FAILED and not unknown:
                    return start, time.monotonic(), answer
                unknown = unknown or answer.outcome != ELSEWHERE
            if time.monotonic() >= until:
                return start, NEVER, Answer(UNKNOWN if unknown else ELSEWHERE, {})
            time.sleep(self.pause)

    def read(self, target, latest=True):
        """What the first one shows that does not send elsewhere; None: nobody does."""
        start = time.monotonic()
        for answer in self.everywhere(lambda path: ask(path, "GET", target, latest=latest)):
            if answer.outcome in (OK, FAILED):
                return start, time.monotonic(), answer
        return None

    def everywhere(self, one):
        """From the one on that answered last."""
        first = self.last
        for number in range(len(self.sockets)):
            at = (first + number) % len(self.sockets)
            answer = one(self.sockets[at])
            if answer.outcome == OK and not answer.old:
                self.last = at
            yield answer

    def note(self, *fields):
        with self.lock:
            self.records.append(Record(*fields))

    def noted(self):
        with self.lock:
            return list(self.records)
