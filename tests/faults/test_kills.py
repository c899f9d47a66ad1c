"""A killed run is the run it would have been: a small round of :mod:`tests.faults.kills`."""

import pytest

from tests.faults import kills


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_killed_three_times_equals_its_journal_trained_in_one_go():
    found = kills.run(seed=1, kills=3, steps=6, groups=6, repeat=4, gap_s=(0.0, 1.0))
    assert found["ok"], found
    assert found["steps"] == found["replayed_steps"] == 6
