# SPDX-License-Identifier: Apache-2.0
"""In which form the tests are run. `make vm-check` has the short one, in which daemons are killed at some of their
steps: at those that a test names and at a share of the others, which the seed chooses. The long one (`make vm-soak`,
`--long`) has all of them. Set before tests are loaded."""

LONG = False
SEED = 0
SHARE = 4  # one step in so many; as many seeds in a row take every step


def steps(named):
    """For a script that sources pooling.sh: at which steps `killed` kills (see programs/kill_at_steps.cc)."""
    if LONG:
        return ""
    always = "".join(f"{name}\n" for name in named)
    return f"STEP_SHARE={SHARE}:{SEED}\ncat >/tmp/always <<'END'\n{always}END\n"


def writes():
    """For a script with killed_at_every_write: after which writes."""
    return "" if LONG else f"WRITES_STRIDE={SHARE} WRITES_FIRST={SEED % SHARE + 1}\n"
