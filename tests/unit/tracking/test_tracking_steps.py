"""Claims about the file of steps that trackers are fed from, and about what is asked for before a job starts."""

import json
import math

import pytest

from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError
from ajet.server.jobs import check_machine, validated
from ajet.tracking import names
from ajet.tracking.steps import Cursor, StepFile, line, scalars


def write(path, *steps):
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))


def numbers(file):
    return [step["step"] for step in file.new()]


def test_each_step_comes_once_and_a_torn_line_when_it_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = StepFile(path, after=1)
    assert numbers(file) == []
    write(path, 1, 2, 3)
    assert numbers(file) == [2, 3]
    with path.open("a") as out:
        out.write('{"step": 4, "rew')
        out.flush()
        assert numbers(file) == []
        out.write('ard": 1}\n')
    assert numbers(file) == [4]
    assert numbers(file) == []


def test_a_replaced_file_is_read_again_without_what_was_read_before(tmp_path):
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other"
    write(path, 1, 2)
    file = StepFile(path, after=0)
    assert numbers(file) == [1, 2]
    write(other, 1, 2, 3)
    other.replace(path)
    assert numbers(file) == [3]


def test_what_is_reported_of_a_step_is_its_finite_numbers():
    step = {
        "step": 3, "time": 1.5, "digest": "ab", "reward/mean": 0.5, "nan": math.nan, "dropped": {"late": 2},
        "policy_lag_tokens": {"0": 10, "1": 3},
    }  # fmt: skip
    assert scalars(step) == {
        "reward/mean": 0.5, "dropped/late": 2.0, "policy_lag_tokens/0": 10.0, "policy_lag_tokens/1": 3.0,
    }  # fmt: skip


def test_the_console_line_shows_rewards_win_rates_and_the_update():
    step = {"step": 3, "reward/mean": 0.5, "env/win/werewolf": 0.75, "tokens/trained": 812, "time/update_s": 1.26}
    assert line(step, 9) == "step 3 of 9, reward/mean 0.5, win/werewolf 0.75, 812 tokens trained, update 1.3 s"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "a"}', '{"run": "a", "step": null}'])
def test_an_unreadable_cursor_begins_a_new_run(tmp_path, text):
    path = tmp_path / "cursor"
    path.write_text(text)
    assert Cursor.load(path) == Cursor(None, 0)
    Cursor("a", 7).save(path)
    assert Cursor.load(path) == Cursor("a", 7)


def config(logger):
    found = AjetConfig()
    found.trainer_common.logger = logger
    return found


def test_a_tracker_that_is_not_installed_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(names._NEEDS, "mlflow", ("a_module_that_nobody_has",))
    # What a tracker leaves in the working directory is no installation of it.
    (tmp_path / "a_module_that_nobody_has").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="pip install a_module_that_nobody_has") as caught:
        check_machine(config(["console", "mlflow"]))
    assert "trainer_common.logger names mlflow" in caught.value.message
    check_machine(config("console"))


def test_an_unknown_tracker_is_refused_with_the_names_that_are_known(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer_common\.logger.*'trackio'.*\"tensorbord\""):
        validated({"trainer_common": {"logger": ["tensorbord"]}}, tmp_path)
    assert validated({"trainer_common": {"logger": "wandb"}}, tmp_path).trainer_common.logger == "wandb"


def test_trackers_are_chosen_once_each():
    assert names.chosen("wandb") == ("wandb",)
    assert names.chosen(["wandb", "console", "wandb"]) == ("wandb", "console")
