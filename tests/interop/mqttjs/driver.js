// MQTT.js, driven by lines of JSON: one order per line in, answers and events out.
'use strict'
const fs = require('fs')
const readline = require('readline')
const mqtt = require(process.argv[2])

const clients = new Map()
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')

const options = (order) => ({
  host: order.host,
  port: order.port,
  protocol: order.websocket ? 'ws' : order.identity ? 'mqtts' : 'mqtt',
  protocolVersion: order.version,
  protocolId: order.version === 3 ? 'MQIsdp' : 'MQTT',
  clientId: order.client_id,
  clean: order.clean,
  keepalive: order.keep_alive,
  reconnectPeriod: 0,
  connectTimeout: 180000,
  properties: order.properties,
  will: order.will && { ...order.will, payload: Buffer.from(order.will.payload, 'base64') },
  ...(order.identity && {
    ca: fs.readFileSync(order.identity.authority),
    cert: fs.readFileSync(order.identity.certificate),
    key: fs.readFileSync(order.identity.key),
  }),
})

const message = (handle) => (topic, payload, packet) => {
  const found = packet.properties || {}
  const correlation = found.correlationData && found.correlationData.toString('base64')
  say({
    handle,
    event: 'message',
    topic,
    payload: payload.toString('base64'),
    qos: packet.qos,
    retain: packet.retain,
    properties: { ...found, correlationData: correlation },
  })
}

const open = (order) =>
  new Promise((resolve, reject) => {
    const client = mqtt.connect(options(order))
    clients.set(order.handle, client)
    client.on('message', message(order.handle))
    client.on('connect', (connack) =>
      resolve({
        session_present: connack.sessionPresent,
        assigned: connack.properties && connack.properties.assignedClientIdentifier,
      })
    )
    client.on('disconnect', (packet) =>
      say({ handle: order.handle, event: 'told', reason: packet.reasonCode })
    )
    client.on('error', reject)
    client.on('close', () => {
      say({ handle: order.handle, event: 'closed' })
      reject(new Error('closed'))
    })
  })

const orders = {
  open,
  subscribe: async (order, client) => {
    const granted = await client.subscribeAsync(order.filter, order.options)
    return { granted: granted.length ? granted[0].qos : null }
  },
  unsubscribe: async (order, client) => {
    await client.unsubscribeAsync(order.filter)
    return {}
  },
  publish: async (order, client) => {
    const payload = Buffer.from(order.payload, 'base64')
    if (order.options.properties && order.options.properties.correlationData) {
      const data = Buffer.from(order.options.properties.correlationData, 'base64')
      order.options.properties.correlationData = data
    }
    const packet = await client.publishAsync(order.topic, payload, order.options)
    return { reason: (packet && packet.reasonCode) || 0 }
  },
  drop: async (order, client) => {
    client.stream.destroy()
    return {}
  },
  close: async (order, client) => {
    await client.endAsync(false, order.options || {})
    return {}
  },
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const order = JSON.parse(line)
  try {
    const answer = await orders[order.do](order, clients.get(order.handle))
    say({ number: order.number, ...answer })
  } catch (error) {
    say({ number: order.number, error: String(error), code: error.code })
  }
})
