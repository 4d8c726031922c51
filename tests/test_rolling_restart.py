"""A rolling restart by the manifests, in miniature: one of two pods, a short preStop hook, few users."""

import asyncio
import json

from tests.rolling_restart import nothing_lost, roll_under_load


def test_a_pod_that_is_replaced_under_load_loses_no_answer():
    found = asyncio.run(roll_under_load(http=2, devices=2, max_tokens=40, replicas=2, rolled=1, pre_stop=1.5))
    assert nothing_lost(found), json.dumps(found)
