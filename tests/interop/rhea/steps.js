// What rhea does with a broker; prints one line for each step that went well.
'use strict';
const assert = require('assert');
const rhea = require('rhea');

const MANY = 100;
const [addresses, prefix, mode] = process.argv.slice(2);
const places = addresses.split(',').map((each) => {
  const [host, port] = each.split(':');
  return {host, port: Number(port)};
});

function once(emitter, event) {
  return new Promise((resolve, reject) => {
    emitter.once(event, resolve);
    if (event !== 'sender_error' && event !== 'receiver_error') {
      emitter.once('sender_error', (context) => reject(context.sender.error));
      emitter.once('receiver_error', (context) => reject(context.receiver.error));
    }
  });
}

async function connect() {
  const connection = rhea.create_container().connect({...places[0], reconnect: false});
  await once(connection, 'connection_open');
  return connection;
}

async function openSender(connection, queue) {
  const sender = connection.open_sender(queue);
  await once(sender, 'sendable');
  return sender;
}

function sendAll(sender, messages) {
  return new Promise((resolve, reject) => {
    let next = 0;
    let accepted = 0;
    const more = () => {
      while (next < messages.length && sender.sendable()) {
        sender.send(messages[next]);
        next += 1;
      }
    };
    sender.on('sendable', more);
    sender.on('accepted', () => {
      accepted += 1;
      if (accepted === messages.length) resolve();
    });
    sender.on('rejected', (context) => reject(context.delivery.remote_state));
    more();
  });
}

// Receives so many; `decide` says what becomes of each.
function take(connection, source, count, decide, options = {}) {
  return new Promise((resolve, reject) => {
    const found = [];
    const receiver = connection.open_receiver({
      source, credit_window: 0, autoaccept: false, autosettle: true, ...options,
    });
    receiver.on('receiver_open', () => receiver.add_credit(count));
    receiver.on('receiver_error', () => reject(receiver.error));
    receiver.on('message', (context) => {
      found.push(context.message);
      decide(context.delivery, context.message);
      if (found.length === count) {
        receiver.on('receiver_close', () => resolve(found));
        receiver.close();
      }
    });
  });
}

const accept = (delivery) => delivery.accept();

async function isEmpty(connection, source) {
  const receiver = connection.open_receiver({source, credit_window: 0});
  await once(receiver, 'receiver_open');
  let came = 0;
  receiver.on('message', () => { came += 1; });
  receiver.drain = true;
  receiver.add_credit(1);
  await once(receiver, 'receiver_drained');
  receiver.close();
  return came === 0;
}

async function send(connection, queue) {
  const sender = await openSender(connection, queue);
  const messages = [...Array(MANY).keys()].map((n) => ({
    body: `body ${n}`, correlation_id: `about ${n}`, application_properties: {number: n},
  }));
  messages.push({body: rhea.message.data_section(Buffer.alloc(300000, 7))});
  await sendAll(sender, messages);
  const found = await take(connection, queue, MANY + 1, accept);
  found.slice(0, MANY).forEach((message, n) => {
    assert.strictEqual(message.body, `body ${n}`);
    assert.strictEqual(message.correlation_id, `about ${n}`);
    assert.strictEqual(message.application_properties.number, n);
  });
  assert.strictEqual(found[MANY].body.content.length, 300000);
  assert(await isEmpty(connection, queue));
}

async function outcomes(connection, queue) {
  const sender = await openSender(connection, queue);
  await sendAll(sender, ['accept', 'accept', 'release', 'reject', 'modify'].map((body) => ({body})));
  // rhea tells the first two of one read by one disposition: they are alike.
  await take(connection, queue, 5, (delivery, message) => {
    switch (message.body) {
      case 'accept': delivery.accept(); break;
      case 'reject': delivery.reject({condition: 'test:no', description: 'not wanted'}); break;
      case 'release': delivery.release(); break;
      default: delivery.modified({delivery_failed: true, message_annotations: {'x-opt-note': 'seen'}});
    }
  });
  const again = await take(connection, queue, 2, accept);
  assert.deepStrictEqual(again.map((each) => each.body).sort(), ['modify', 'release']);
  const modified = again.find((each) => each.body === 'modify');
  assert.strictEqual(modified.delivery_count, 1);
  assert.strictEqual(modified.message_annotations['x-opt-note'], 'seen');
  assert(await isEmpty(connection, queue));
  const [dead] = await take(connection, `${queue}/$dead-letters`, 1, accept);
  assert.strictEqual(dead.body, 'reject');
  assert(dead.message_annotations['x-opt-dead-letter-reason'].includes('not wanted'));
}

async function credit(connection, queue) {
  const sender = await openSender(connection, queue);
  await sendAll(sender, [...Array(20).keys()].map((n) => ({body: n})));
  const receiver = connection.open_receiver({source: queue, credit_window: 0, autoaccept: false});
  const held = [];
  receiver.on('message', (context) => held.push(context.delivery));
  await once(receiver, 'receiver_open');
  receiver.add_credit(5);
  // Five and no more: the others are somebody else's.
  const others = await take(connection, queue, 15, accept);
  assert.strictEqual(held.length, 5);
  held.forEach((delivery) => delivery.release());
  const rest = await take(connection, queue, 5, accept);
  const bodies = [...others, ...rest].map((each) => each.body).sort((a, b) => a - b);
  assert.deepStrictEqual(bodies, [...Array(20).keys()]);
}

async function selectors(connection, queue) {
  const sender = await openSender(connection, queue);
  await sendAll(sender, [...Array(20).keys()].map((n) => ({
    body: n, application_properties: {number: n, colour: n % 2 ? 'red' : 'blue'},
  })));
  const filter = rhea.filter.selector("colour = 'blue' AND number BETWEEN 4 AND 9");
  const chosen = await take(connection, {address: queue, filter}, 3, accept);
  assert.deepStrictEqual(chosen.map((each) => each.body), [4, 6, 8]);
  assert.strictEqual((await take(connection, queue, 17, accept)).length, 17);
}

function survive() {
  let dialled = 0;
  const connection = rhea.create_container().connect({
    connection_details: () => { dialled += 1; return places[(dialled - 1) % places.length]; },
    initial_reconnect_delay: 50, max_reconnect_delay: 200,
  });
  connection.on('connection_error', () => undefined);
  const sender = connection.open_sender({target: prefix});
  const receiver = connection.open_receiver({source: prefix, autoaccept: true});
  const waiting = [...Array(2 * MANY).keys()];
  const open = new Map();
  const found = new Set();
  let told = 0;
  const more = () => {
    while (waiting.length && open.size < 4 && sender.sendable()) {
      const n = waiting.shift();
      open.set(sender.send({body: `body ${n}`}), n);
    }
  };
  const again = (context) => { // nobody knows what became of it: it is sent again
    if (open.has(context.delivery)) waiting.unshift(open.get(context.delivery));
    open.delete(context.delivery);
    more();
  };
  sender.on('sendable', more);
  sender.on('released', again);
  sender.on('modified', again);
  sender.on('rejected', (context) => { throw new Error(String(context.delivery.remote_state)); });
  sender.on('accepted', (context) => {
    open.delete(context.delivery);
    told += 1;
    if (told === MANY) console.log('half');
    more();
  });
  connection.on('disconnected', () => {
    for (const n of open.values()) waiting.unshift(n);
    open.clear();
  });
  receiver.on('message', (context) => {
    found.add(context.message.body);
    if (found.size === 2 * MANY) {
      console.log('survive');
      process.exit(0);
    }
  });
}

async function main() {
  if (mode === 'survive') {
    survive();
    return;
  }
  const connection = await connect();
  for (const [name, step] of Object.entries({send, outcomes, credit, selectors})) {
    await step(connection, `${prefix}-${name}`);
    console.log(name);
  }
  connection.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
