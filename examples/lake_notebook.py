# ruff: noqa: T201
"""A first hour with the lake: publish, ingest, ask with SQL, plot. Cells as notebooks know them.

Run it as a script, or open it in an editor that understands `# %%`. It needs the packages of the
extra `lake`, starts a broker of its own, and leaves everything in the directory that it prints.
"""

# %% A broker of our own: one node, durable in a directory.
from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import math
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quantum.client import ClientError, ClientOptions, Endpoint, MqttClient

home = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quantum-lake-"))
print(f"everything is in {home}")


def free_port() -> int:
    """Find one below those that the system gives to connections: nobody takes it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


mqtt, admin = free_port(), free_port()
command = [sys.executable, "-c", "from quantum.cli import main; main()", "up"]
command += ["--data", str(home / "var"), "--mqtts", "off", "--ws", "off", "--amqp", "off"]
command += ["--kafka", "off"]
command += ["--mqtt", f"127.0.0.1:{mqtt}", "--admin", f"127.0.0.1:{admin}"]
broker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
atexit.register(broker.kill)  # whatever goes wrong below


# %% Publish: a day of temperatures from three sensors, and one that talks nonsense.
def connection() -> MqttClient:
    endpoint = Endpoint("127.0.0.1", mqtt, timeout_seconds=60)
    return MqttClient(endpoint, ClientOptions(client_id="notebook"))


async def until_served() -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            async with connection():
                return
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def publish_readings() -> None:
    async with connection() as client:
        for minute in range(0, 24 * 60, 20):
            for number, sensor in enumerate(("attic", "cellar", "garden")):
                warmth = 12 + 4 * number + 5 * math.sin(minute / 229)
                reading = json.dumps({"minute": minute, "temperature": round(warmth, 2)})
                await client.publish(f"sensors/{sensor}/reading", reading.encode(), qos=1)
        await client.publish("sensors/broken/reading", b"?!", qos=2)


asyncio.run(until_served())
asyncio.run(publish_readings())

# %% Ingest: from the running broker into a table. Run the cell again: nothing is added.
from quantum.lake.jobs import IngestSettings, View, ingest, read_table, read_view, verify  # noqa: E402
from quantum.lake.session import spark_session  # noqa: E402

spark = spark_session("local[2]")
logs, table, keys = f"cluster:127.0.0.1:{admin}", str(home / "table"), f"directory:{home / 'var'}"
readings = View(
    "readings", "sensors/+/reading", "json", {"minute": "long", "temperature": "double"}
)
settings = IngestSettings(views=(readings,))
for _ in range(2):
    print(ingest(logs, table, spark=spark, keys=keys, settings=settings))

# %% Is the table what the log says? The Merkle root names its content.
verdict = verify(logs, table, spark=spark, keys=keys)
print("equal" if verdict.is_equal else "DIFFERENT", verdict.root)
assert verdict.is_equal

# %% Ask with SQL: raw messages, and the typed view beside them.
read_table(spark, table).createOrReplaceTempView("messages")
read_view(spark, table, "readings").createOrReplaceTempView("readings")
spark.sql("select topic, count(*) as messages from messages group by topic order by topic").show()
averages = spark.sql(
    """
    select split(topic, '/')[1] as sensor, minute div 60 as hour, avg(temperature) as temperature
    from readings group by sensor, hour order by sensor, hour
    """
).collect()
assert len(averages) == 3 * 24

# %% Plot.
from matplotlib.figure import Figure  # noqa: E402

figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.subplots()
for sensor in sorted({row["sensor"] for row in averages}):
    mine = [row for row in averages if row["sensor"] == sensor]
    axes.plot([row["hour"] for row in mine], [row["temperature"] for row in mine], label=sensor)
axes.set_xlabel("hour")
axes.set_ylabel("°C")
axes.legend()
figure.savefig(home / "temperatures.svg")
print(home / "temperatures.svg")

# %% And the end.
spark.stop()
broker.terminate()
broker.wait(90)
