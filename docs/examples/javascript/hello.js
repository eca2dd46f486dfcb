const mqtt = require("mqtt");

async function main() {
  const client = await mqtt.connectAsync(`mqtt://127.0.0.1:${process.argv[2] || 1883}`);
  const arrived = new Promise((done) => client.once("message", (...message) => done(message)));
  await client.subscribeAsync("hello/javascript", { qos: 1 });
  await client.publishAsync("hello/javascript", "from JavaScript", { qos: 1 }); // PUBACK: fsynced on a quorum
  const [topic, payload] = await arrived;
  console.log(topic, payload.toString());
  await client.endAsync();
}

main();
