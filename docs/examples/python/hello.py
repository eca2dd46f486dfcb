import queue
import sys

import paho.mqtt.client as mqtt

port = int(sys.argv[1]) if len(sys.argv) > 1 else 1883
heard: queue.Queue[str] = queue.Queue()
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
client.on_connect = lambda *_: client.subscribe("hello/python", qos=1)
client.on_subscribe = lambda *_: heard.put("subscribed")
client.on_message = lambda _client, _data, it: heard.put(f"{it.topic} {it.payload.decode()}")
client.connect("127.0.0.1", port)
client.loop_start()
heard.get(timeout=60)
client.publish("hello/python", "from Python", qos=1).wait_for_publish(60)  # until PUBACK
print(heard.get(timeout=60))
client.disconnect()
