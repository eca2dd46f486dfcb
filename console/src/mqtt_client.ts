/** A client of MQTT 5 over WebSocket: one connection, told in events. */

import {
  DISCONNECT, encodeConnect, encodePuback, encodePubcomp, encodePublish, encodePubrec, encodePubrel, encodeSubscribe, encodeUnsubscribe, Malformed, PacketReader,
  PINGREQ,
  type ConnectOptions, type Message, type Packet, type UserProperties,
} from "./mqtt";

const UNANSWERED_MAX = 1_000;
/** A publish with this user property is told where it is in the log. */
export const RECEIPT = "quantum-receipt";

export interface Ears {
  onOpen: () => void;
  onMessage: (message: Message) => void;
  /** Something to be told: an acknowledgement, a refusal. */
  onWord: (word: string) => void;
  /** A publish was acknowledged, and the answer names the message in the log. */
  onReceipt: (message: string) => void;
  onEnd: (why: string) => void;
}

export class MqttClient {
  private readonly socket: WebSocket;
  private readonly reader = new PacketReader();
  private readonly waiting = new Map<number, { what: string; since: number }>();
  /** QoS 2 messages of the broker that it has not released: each is told once. */
  private readonly unreleased = new Set<number>();
  private lastId = 0;
  private beat = 0;
  private over = false;

  /** Throws SyntaxError or SecurityError where the address is none. */
  constructor(address: string, private readonly options: ConnectOptions, private readonly ears: Ears) {
    this.socket = new WebSocket(address, ["mqtt"]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.send(encodeConnect(options));
    this.socket.onmessage = (event) => this.heard(new Uint8Array(event.data as ArrayBuffer));
    this.socket.onclose = () => this.end("the connection was closed");
    this.socket.onerror = () => this.end("there is no MQTT over WebSocket at this address, or it takes no pages of this origin");
  }

  subscribe(filter: string, qos: number): void {
    this.send(encodeSubscribe(this.draw(`subscription to ${filter}`), filter, qos));
  }

  unsubscribe(filter: string): void {
    this.send(encodeUnsubscribe(this.draw(`end of the subscription to ${filter}`), filter));
  }

  publish(message: Message): void {
    const packetId = message.qos ? this.draw(`message to ${message.topic}`) : 0;
    this.send(encodePublish({ ...message, packetId }));
    if (!message.qos) this.ears.onWord(`message to ${message.topic}: sent; at QoS 0 nobody acknowledges`);
  }

  close(): void {
    if (this.socket.readyState === WebSocket.OPEN) this.send(DISCONNECT);
    this.end("you closed it");
  }

  private draw(what: string): number {
    if (this.waiting.size >= UNANSWERED_MAX) throw new RangeError("too much waits for an answer");
    do this.lastId = (this.lastId % 65_535) + 1;
    while (this.waiting.has(this.lastId));
    this.waiting.set(this.lastId, { what, since: performance.now() });
    return this.lastId;
  }

  private send(bytes: Uint8Array): void {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(bytes as Uint8Array<ArrayBuffer>);
  }

  private heard(bytes: Uint8Array): void {
    try {
      for (const packet of this.reader.take(bytes)) this.take(packet);
    } catch (error) {
      if (!(error instanceof Malformed)) throw error;
      this.end(error.message);
    }
  }

  private take(packet: Packet): void {
    switch (packet.kind) {
      case "connack":
        if (packet.reason >= 128) return this.end(`refused (0x${packet.reason.toString(16)}) ${packet.said}`);
        this.beat = window.setInterval(() => this.send(PINGREQ), this.options.keepAliveSeconds * 500);
        return this.ears.onOpen();
      case "publish":
        return this.published(packet.message);
      case "pubrec":
        this.named(packet.user);
        if (packet.reasons[0]! >= 128) return this.answered(packet.packetId, packet.reasons, packet.said);
        return this.send(encodePubrel(packet.packetId));
      case "pubrel":
        this.unreleased.delete(packet.packetId);
        return this.send(encodePubcomp(packet.packetId));
      case "disconnect":
        return this.end(`the broker ended it (0x${packet.reason.toString(16)}) ${packet.said}`);
      case "pingresp":
        return;
      default:
        this.named(packet.user);
        return this.answered(packet.packetId, packet.reasons, packet.said);
    }
  }

  private published(message: Message): void {
    if (message.qos === 1) this.send(encodePuback(message.packetId));
    if (message.qos === 2) {
      this.send(encodePubrec(message.packetId));
      if (this.unreleased.has(message.packetId)) return;
      this.unreleased.add(message.packetId);
    }
    this.ears.onMessage(message);
  }

  private named(user: UserProperties): void {
    const found = user.find(([name]) => name === RECEIPT);
    if (found) this.ears.onReceipt(found[1]);
  }

  private answered(packetId: number, reasons: number[], said: string): void {
    const asked = this.waiting.get(packetId);
    this.waiting.delete(packetId);
    const refused = reasons.find((each) => each >= 128);
    const took = asked ? ` after ${(performance.now() - asked.since).toFixed(1)} ms` : "";
    const outcome = refused === undefined ? `acknowledged${took}` : `refused (0x${refused.toString(16)}) ${said}`;
    this.ears.onWord(`${asked?.what ?? "packet"}: ${outcome}`);
  }

  private end(why: string): void {
    if (this.over) return;
    this.over = true;
    window.clearInterval(this.beat);
    this.socket.close();
    this.ears.onEnd(why);
  }
}
