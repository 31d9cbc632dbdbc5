# SPDX-License-Identifier: Apache-2.0
"""In which form the tests are run. `make vm-check` has all of them whole. In the short form (`make vm-short`, `--short`)
daemons are killed at some of their steps: at those that a test names and at a share of the others, which the seed
chooses. Set before tests are loaded."""

SHORT = False
SEED = 0
SHARE = 4  # one step in so many; as many seeds in a row take every step


def steps(named):
    """For a script that sources pooling.sh: at which steps `killed` kills (see programs/kill_at_steps.cc)."""
    if not SHORT:
        return ""
    always = "".join(f"{name}\n" for name in named)
    return f"STEP_SHARE={SHARE}:{SEED}\ncat >/tmp/always <<'END'\n{always}END\n"


def writes():
    """For a script with killed_at_every_write: after which writes."""
    return f"WRITES_STRIDE={SHARE} WRITES_FIRST={SEED % SHARE + 1}\n" if SHORT else ""


def named():
    """For what is printed."""
    return f", short form, seed {SEED}" if SHORT else ""
