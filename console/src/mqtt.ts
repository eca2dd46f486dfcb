/** MQTT 5 for one client: packets to bytes and back. No socket, no clock. */

const TEXT = new TextEncoder();
const READ_TEXT = new TextDecoder("utf-8", { fatal: true });
const PACKET_BYTES_MAX = 8 << 20;

export type UserProperties = [string, string][];

export interface Message {
  topic: string;
  payload: Uint8Array;
  qos: number;
  retain: boolean;
  packetId: number;
  contentType: string;
  userProperties: UserProperties;
  responseTopic: string;
  correlation: Uint8Array;
  /** 0: it does not expire. */
  expirySeconds: number;
}

/** `pubrel` is a broker's part of its own QoS 2 messages. */
export type AnswerKind = "puback" | "pubrec" | "pubrel" | "pubcomp" | "suback" | "unsuback";

export type Packet =
  | { kind: "connack"; reason: number; said: string; sessionPresent: boolean }
  | { kind: "publish"; message: Message }
  | { kind: AnswerKind; packetId: number; reasons: number[]; said: string; user: UserProperties }
  | { kind: "pingresp" }
  | { kind: "disconnect"; reason: number; said: string };

/** What the peer sent is no MQTT 5 that a client may get. */
export class Malformed extends Error {}

// How each property is spelled (MQTT 5 §2.2.2.2): bytes of a number, text, data, pair, variable.
const PROPERTY: Record<number, number | "text" | "data" | "pair" | "variable"> = {
  1: 1, 2: 4, 3: "text", 8: "text", 9: "data", 11: "variable", 17: 4, 18: "text", 19: 2, 21: "text", 22: "data", 23: 1, 24: 4,
  25: 1, 26: "text", 28: "text", 31: "text", 33: 2, 34: 2, 35: 2, 36: 1, 37: 1, 38: "pair", 39: 4, 40: 1, 41: 1, 42: 1,
};
const EXPIRY = 2;
const CONTENT_TYPE = 3;
const RESPONSE_TOPIC = 8;
const CORRELATION = 9;
const REASON_STRING = 31;
const USER_PROPERTY = 38;

interface Said {
  texts: Map<number, string>;
  numbers: Map<number, number>;
  datas: Map<number, Uint8Array>;
  user: UserProperties;
}

class Reader {
  at = 0;
  constructor(readonly bytes: Uint8Array) {}

  get left(): number {
    return this.bytes.length - this.at;
  }

  number(size: number): number {
    let value = 0;
    for (const byte of this.take(size)) value = value * 256 + byte;
    return value;
  }

  take(size: number): Uint8Array {
    if (size > this.left) throw new Malformed("a packet ends too early");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  data(): Uint8Array {
    return this.take(this.number(2));
  }

  text(): string {
    try {
      return READ_TEXT.decode(this.data());
    } catch {
      throw new Malformed("a text that is not UTF-8");
    }
  }

  variable(): number {
    let value = 0;
    for (let shift = 0; shift < 28; shift += 7) {
      const byte = this.number(1);
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
    throw new Malformed("a length that is too long");
  }

  properties(): Said {
    const texts = new Map<number, string>();
    const numbers = new Map<number, number>();
    const datas = new Map<number, Uint8Array>();
    const user: UserProperties = [];
    const inner = new Reader(this.take(this.variable()));
    while (inner.left) {
      const id = inner.variable();
      const kind = PROPERTY[id];
      if (kind === undefined) throw new Malformed(`no property has the number ${id}`);
      if (typeof kind === "number") numbers.set(id, inner.number(kind));
      else if (kind === "text") texts.set(id, inner.text());
      else if (kind === "data") datas.set(id, inner.data().slice());
      else if (kind === "variable") inner.variable();
      else user.push([inner.text(), inner.text()]);
    }
    return { texts, numbers, datas, user };
  }
}

type Piece = number[] | Uint8Array;

function two(value: number): number[] {
  return [value >> 8, value & 255];
}

function variable(value: number): number[] {
  const bytes: number[] = [];
  do {
    bytes.push((value % 128) | (value >= 128 ? 128 : 0));
    value = Math.floor(value / 128);
  } while (value);
  return bytes;
}

function data(bytes: Uint8Array): Piece[] {
  if (bytes.length > 65_535) throw new RangeError("a text of MQTT has 65,535 bytes at most");
  return [two(bytes.length), bytes];
}

function text(value: string): Piece[] {
  return data(TEXT.encode(value));
}

function sized(pieces: Piece[]): number {
  return pieces.reduce((sum, piece) => sum + piece.length, 0);
}

function packet(first: number, pieces: Piece[]): Uint8Array {
  const all = [[first, ...variable(sized(pieces))], ...pieces];
  const bytes = new Uint8Array(sized(all));
  let at = 0;
  for (const piece of all) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

function properties(pieces: Piece[]): Piece[] {
  return [variable(sized(pieces)), ...pieces];
}

export interface ConnectOptions {
  clientId: string;
  username: string;
  password: string;
  keepAliveSeconds: number;
}

/** A clean start, and no session that outlives the page. */
export function encodeConnect(options: ConnectOptions): Uint8Array {
  const flags = 2 | (options.username ? 128 : 0) | (options.password ? 64 : 0);
  return packet(0x10, [
    ...text("MQTT"), [5, flags], two(options.keepAliveSeconds), ...properties([]), ...text(options.clientId),
    ...(options.username ? text(options.username) : []), ...(options.password ? text(options.password) : []),
  ]);
}

export function encodeSubscribe(packetId: number, filter: string, qos: number): Uint8Array {
  return packet(0x82, [two(packetId), ...properties([]), ...text(filter), [qos]]);
}

export function encodeUnsubscribe(packetId: number, filter: string): Uint8Array {
  return packet(0xa2, [two(packetId), ...properties([]), ...text(filter)]);
}

export function encodePublish(message: Message): Uint8Array {
  const said: Piece[] = [];
  if (message.expirySeconds) said.push([EXPIRY], two(Math.floor(message.expirySeconds / 65_536)), two(message.expirySeconds % 65_536));
  if (message.responseTopic) said.push([RESPONSE_TOPIC], ...text(message.responseTopic));
  if (message.correlation.length) said.push([CORRELATION], ...data(message.correlation));
  if (message.contentType) said.push([CONTENT_TYPE], ...text(message.contentType));
  for (const [name, value] of message.userProperties) said.push([USER_PROPERTY], ...text(name), ...text(value));
  const first = 0x30 | (message.qos << 1) | (message.retain ? 1 : 0);
  return packet(first, [...text(message.topic), ...(message.qos ? [two(message.packetId)] : []), ...properties(said), message.payload]);
}

export function encodePuback(packetId: number): Uint8Array {
  return packet(0x40, [two(packetId)]);
}

export function encodePubrec(packetId: number): Uint8Array {
  return packet(0x50, [two(packetId)]);
}

export function encodePubrel(packetId: number): Uint8Array {
  return packet(0x62, [two(packetId)]);
}

export function encodePubcomp(packetId: number): Uint8Array {
  return packet(0x70, [two(packetId)]);
}

export const PINGREQ = new Uint8Array([0xc0, 0]);
export const DISCONNECT = new Uint8Array([0xe0, 0]);

function decodePublish(flags: number, body: Reader): Packet {
  const qos = (flags >> 1) & 3;
  const topic = body.text();
  const packetId = qos ? body.number(2) : 0;
  const said = body.properties();
  const payload = body.take(body.left).slice();
  return {
    kind: "publish",
    message: {
      topic, payload, qos, retain: (flags & 1) === 1, packetId,
      contentType: said.texts.get(CONTENT_TYPE) ?? "",
      userProperties: said.user,
      responseTopic: said.texts.get(RESPONSE_TOPIC) ?? "",
      correlation: said.datas.get(CORRELATION) ?? new Uint8Array(),
      expirySeconds: said.numbers.get(EXPIRY) ?? 0,
    },
  };
}

function decodeAnswer(kind: AnswerKind, body: Reader): Packet {
  const packetId = body.number(2);
  if (kind !== "suback" && kind !== "unsuback") {
    const reason = body.left ? body.number(1) : 0;
    const said = body.left ? body.properties() : null;
    return { kind, packetId, reasons: [reason], said: said?.texts.get(REASON_STRING) ?? "", user: said?.user ?? [] };
  }
  const said = body.properties();
  return { kind, packetId, reasons: [...body.take(body.left)], said: said.texts.get(REASON_STRING) ?? "", user: said.user };
}

const ANSWERS: Record<number, AnswerKind> = { 4: "puback", 5: "pubrec", 6: "pubrel", 7: "pubcomp", 9: "suback", 11: "unsuback" };

function decode(first: number, body: Reader): Packet {
  switch (first >> 4) {
    case 2: {
      const sessionPresent = (body.number(1) & 1) === 1;
      const reason = body.number(1);
      return { kind: "connack", sessionPresent, reason, said: body.properties().texts.get(REASON_STRING) ?? "" };
    }
    case 3:
      return decodePublish(first & 15, body);
    case 4:
    case 5:
    case 6:
    case 7:
    case 9:
    case 11:
      return decodeAnswer(ANSWERS[first >> 4]!, body);
    case 13:
      return { kind: "pingresp" };
    case 14: {
      const reason = body.left ? body.number(1) : 0;
      const said = body.left ? body.properties().texts.get(REASON_STRING) : undefined;
      return { kind: "disconnect", reason, said: said ?? "" };
    }
    default:
      throw new Malformed(`a packet of kind ${first >> 4} is not for a client`);
  }
}

/** Packets out of bytes, however these are cut. */
export class PacketReader {
  private held = new Uint8Array();

  /** Take bytes, return what is whole. Throws Malformed. */
  take(bytes: Uint8Array): Packet[] {
    const joined = new Uint8Array(this.held.length + bytes.length);
    joined.set(this.held);
    joined.set(bytes, this.held.length);
    const found: Packet[] = [];
    let at = 0;
    for (;;) {
      const end = wholeUntil(joined, at);
      if (end === null) break;
      const reader = new Reader(joined.subarray(at, end));
      const first = reader.number(1);
      reader.variable();
      found.push(decode(first, reader));
      at = end;
    }
    this.held = joined.slice(at);
    return found;
  }
}

/** Where the packet at `at` ends; null: it is not whole yet. */
function wholeUntil(bytes: Uint8Array, at: number): number | null {
  let length = 0;
  for (let nth = 0; nth < 4; nth += 1) {
    const byte = bytes[at + 1 + nth];
    if (byte === undefined) return null;
    length += (byte & 127) * 128 ** nth;
    if (byte < 128) {
      if (length > PACKET_BYTES_MAX) throw new Malformed("a packet that is too long for a page");
      const end = at + 2 + nth + length;
      return end <= bytes.length ? end : null;
    }
  }
  throw new Malformed("a length that is too long");
}
