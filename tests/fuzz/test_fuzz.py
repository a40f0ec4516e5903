"""Whatever is in a file that we read, its reader ends with a result or with one message.

The short form makes the same examples every time. The long form, by hand, new ones:
`pytest tests/fuzz --fuzz-minutes 10`, with `-k "status or lineage"` for some files alone.
"""

import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz_damage import edits
from fuzz_readers import FAR_READERS, KINDS, READERS

SETTINGS = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
LONG_EXAMPLES = 200  # between two looks at the clock


def search(home, kind, **options):
    """Try damages to a file of this kind; hypothesis shows those that are faults."""
    damages = edits(home.read_pristine(kind), kind.form, home.words)

    @settings(SETTINGS, **options)
    @given(st.sampled_from(kind.readers), damages)
    def holds(reader, damage):
        home.try_reader(kind, reader, damage)

    return holds


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-").replace(",", ""))
def test_damaged_files_are_read_or_refused(kind, home, request):
    for damage in home.list_attacks(kind):
        for reader in kind.readers:
            if reader in FAR_READERS:
                home.try_reader(kind, reader, damage)
    minutes = request.config.getoption("--fuzz-minutes", None)
    if minutes is None:
        # Without shrinking, which takes minutes: the long form does that.
        search(home, kind, max_examples=kind.num_examples, derandomize=True, phases=[Phase.generate])()
        return
    end = time.process_time() + 60 * minutes
    while time.process_time() < end:
        search(home, kind, max_examples=LONG_EXAMPLES)()


@pytest.mark.parametrize("name", READERS)
def test_every_reader_reads_what_is_whole(name, home):
    """Else the damage would not matter."""
    kind = next(kind for kind in KINDS if name in kind.readers)
    home.try_reader(kind, name, [], may_refuse=False)
