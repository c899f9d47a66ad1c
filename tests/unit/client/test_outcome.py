"""Claims about how an exception of a bare HTTP library is judged: by the code in the body, as the SDK's are."""

from __future__ import annotations

import httpx
import pytest

from ajet.client.outcome import Outcome, outcome_of
from ajet.schema.errors import EpisodeGone, TrainingFinished


def refused(**answer) -> httpx.HTTPStatusError:
    response = httpx.Response(410, request=httpx.Request("POST", "http://server/v1/chat/completions"), **answer)
    return httpx.HTTPStatusError("refused", request=response.request, response=response)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"json": {"error": {"code": EpisodeGone.code}}}, Outcome.WEATHER),
        ({"json": {"error": {"code": TrainingFinished.code}}}, Outcome.FINISHED),
        ({"json": {"error": {"code": "something_else"}}}, Outcome.BUG),
        ({"json": ["not ours"]}, Outcome.BUG),
        ({"text": "not JSON"}, Outcome.BUG),
    ],
)
def test_a_refusal_read_with_a_bare_http_library_counts_as_the_sdks_would(answer, outcome):
    assert outcome_of(refused(**answer)) is outcome
