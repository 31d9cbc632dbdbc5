# SPDX-License-Identifier: Apache-2.0
"""A network namespace for each node, joined by a bridge, and links between two nodes that can be cut, one way too. All
of it is inside the network namespace of this process, and ends with that. Not thread-safe."""

import subprocess

PREFIX = "10.77.0."
LOCAL, CUT = "100", "10"  # priorities of rules: what is cut is asked before what is local


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    def __init__(self):
        self.addresses = {}
        self.cuts = set()
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "switch", "type", "bridge")
        command("ip", "address", "add", f"{PREFIX}254/24", "dev", "switch")  # for this process, which nothing cuts off
        command("ip", "link", "set", "switch", "up")

    def add(self, node):
        """Its address."""
        number = len(self.addresses) + 1
        self.addresses[node] = f"{PREFIX}{number}"
        command("ip", "netns", "add", node)
        command("ip", "link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", node)
        command("ip", "link", "set", f"to-{node}", "master", "switch", "up")
        for words in (["address", "add", f"{PREFIX}{number}/24", "dev", "eth0"], ["link", "set", "eth0", "up"],
                      ["link", "set", "lo", "up"], ["rule", "add", "pref", LOCAL, "lookup", "local"],
                      ["rule", "del", "pref", "0"]):
            command("ip", "-n", node, *words)
        # A socket that is connected would keep the route of what it hears, past every rule.
        command(*self.inside(node), "sysctl", "-qw", "net.ipv4.tcp_early_demux=0")
        return self.addresses[node]

    def inside(self, node):
        """What a command begins with that is to run there; it takes this process's place."""
        return ["nsenter", f"--net=/run/netns/{node}"]

    def cut(self, to, source):
        """What `source` sends to `to` is dropped, and neither is told. No packet filter is needed for that: a rule
        sends it to no route, and a node that forwards nothing answers such packets with nothing."""
        if (to, source) not in self.cuts:
            command("ip", "-n", to, "rule", "add", *self.rule(source))
            self.cuts.add((to, source))

    def mend(self, to, source):
        if (to, source) in self.cuts:
            command("ip", "-n", to, "rule", "del", *self.rule(source))
            self.cuts.remove((to, source))

    def end(self):
        for node in self.addresses:
            command("ip", "link", "delete", f"to-{node}")  # a namespace's own links go when the kernel has time
            command("ip", "netns", "delete", node)
        command("ip", "link", "delete", "switch")

    def mend_all(self):
        for to, source in list(self.cuts):
            self.mend(to, source)

    def rule(self, source):
        return ["pref", CUT, "from", self.addresses[source], "iif", "eth0", "blackhole"]
