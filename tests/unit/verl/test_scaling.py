"""The scaling table's arithmetic, and that what it measures is the driver's own code."""

from benchmarks.gpu.chips import CHIPS
from benchmarks.gpu.models import SIZES
from benchmarks.scaling import Work, driver_cost, modelled

PARTS = ("sample_s", "logprobs_s", "update_s", "hand_over_s", "driver_s")


def test_a_step_is_the_sum_of_its_parts_and_only_the_drivers_grows_with_the_cluster():
    chip = next(chip for chip in CHIPS if chip.name == "H100")
    rows = [modelled(gpus, SIZES["7b"], chip, Work(), (4e-7, 80.0)) for gpus in (8, 64, 512)]
    for row in rows:
        assert abs(sum(row[part] for part in PARTS) - row["step_s"]) < 1e-9
    assert rows[2]["driver_s"] == 8 * rows[1]["driver_s"]
    assert rows[0]["sample_s"] == rows[2]["sample_s"]
    assert rows[0]["tokens_per_gpu_s"] > rows[1]["tokens_per_gpu_s"] > rows[2]["tokens_per_gpu_s"]


def test_the_drivers_share_is_measured_in_time_and_bytes_a_token():
    seconds, sent = driver_cost(Work(length=400, sampled=100))
    assert 0 < seconds < 1e-3
    assert 16 < sent < 1000  # each token goes over as ids, mask, position and derivative
