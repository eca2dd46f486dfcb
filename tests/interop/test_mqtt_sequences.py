"""1,356 packet sequences that nobody here wrote, against a real broker.

They are run by the program that stands beside them; without it this test is skipped. All must
pass, and no connection may close without the reason that the standard gives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.mqtt_broker import HOST, running_broker


def _find() -> Path | None:
    for parent in Path(__file__).resolve().parents:
        tool = parent / "shared" / "tools" / "mqtt_sequences.py"
        if tool.is_file():
            return tool
    return None


TOOL = _find()

# Where the suite wants another reason code than the standard gives, the standard's is sent.
# (the standard's, the suite's, why): how many sequences.
STANDARD_BEFORE_SUITE = {
    (0x81, 0x82, "§2.2.2.2: a property that its packet cannot hold is malformed"): 210,
    (0x81, 0x82, "[MQTT-2.1.3-1]: reserved flags are malformed"): 12,
    (0x81, 0x85, "[MQTT-1.5.4-1], [MQTT-1.5.4-2]: an ill-formed client id is malformed"): 3,
    (0x82, 0x81, "[MQTT-3.8.3-2], [MQTT-3.10.3-2]: no filter at all is a protocol error"): 3,
    (0x82, 0x81, "§3.8.3.1: QoS 3 and retain handling 3 are protocol errors"): 2,
    (0x82, 0x81, "§2.2.1: a packet identifier 0 can be read and is not allowed"): 2,
    (0x82, 0x81, "§3.3.2.1: no topic and no alias is a protocol error"): 1,
    (0x01, 0x84, "3.1.1 §3.2.2.3: before MQTT 5 there are return codes"): 2,
}


@pytest.mark.timeout(900)
@pytest.mark.skipif(TOOL is None, reason="no ../shared/tools/mqtt_sequences.py here")
def test_every_sequence_passes_and_none_is_closed_without_its_reason(tmp_path: Path) -> None:
    assert TOOL is not None
    with running_broker(tmp_path) as port:
        environment = os.environ | {"MQTT_HOST": HOST, "MQTT_PORT": str(port)}
        run = subprocess.run(
            [sys.executable, str(TOOL)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["failures"] == {}
    assert (found["passed"], found["failed"]) == (1356, 0)
    assert found["of_the_passed"].get("closed_without_reason", 0) == 0
    assert found["of_the_passed"]["other_reason"] == sum(STANDARD_BEFORE_SUITE.values())
