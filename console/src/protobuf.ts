/** Protobuf without a schema: what the bytes of a message say by themselves. */

const DEPTH_MAX = 8;
const FIELDS_MAX = 2_000;
const TEXT = new TextDecoder("utf-8", { fatal: true });
const PRINTABLE = /^[\p{L}\p{N}\p{P}\p{S}\p{Zs}\n\r\t]*$/u;

class NoProtobuf extends Error {}

function variable(bytes: Uint8Array, at: number): [bigint, number] {
  let value = 0n;
  for (let nth = 0; nth < 10; nth += 1) {
    const byte = bytes[at + nth];
    if (byte === undefined) break;
    value |= BigInt(byte & 127) << BigInt(7 * nth);
    if (byte < 128) return [BigInt.asUintN(64, value), at + nth + 1];
  }
  throw new NoProtobuf("a number that does not end");
}

function textOf(bytes: Uint8Array): string | null {
  try {
    const text = TEXT.decode(bytes);
    return PRINTABLE.test(text) ? text : null;
  } catch {
    return null;
  }
}

function lines(bytes: Uint8Array, indent: string, room: { left: number }): string[] {
  const found: string[] = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  while (at < bytes.length) {
    if ((room.left -= 1) < 0) return [...found, `${indent}…`];
    const [key, after] = variable(bytes, at);
    const number = Number(key >> 3n);
    const kind = Number(key & 7n);
    if (number < 1 || number > 536_870_911) throw new NoProtobuf(`no field has the number ${number}`);
    const size = kind === 1 ? 8 : kind === 5 ? 4 : 0;
    if (after + size > bytes.length) throw new NoProtobuf("a field ends too early");
    if (kind === 0) {
      const [value, end] = variable(bytes, after);
      found.push(`${indent}${number}: ${value}`);
      at = end;
    } else if (kind === 1) {
      found.push(`${indent}${number}: 0x${view.getBigUint64(after, true).toString(16)} (as a double ${view.getFloat64(after, true)})`);
      at = after + 8;
    } else if (kind === 5) {
      found.push(`${indent}${number}: 0x${view.getUint32(after, true).toString(16)} (as a float ${view.getFloat32(after, true)})`);
      at = after + 4;
    } else if (kind === 2) {
      const [length, begin] = variable(bytes, after);
      if (length > BigInt(bytes.length - begin)) throw new NoProtobuf("a field ends too early");
      at = begin + Number(length);
      found.push(...inside(bytes.subarray(begin, at), number, indent, room));
    } else {
      throw new NoProtobuf(`no field is of kind ${kind}`);
    }
  }
  return found;
}

/** Text where it reads as text, else a message where it reads as one, else bytes. */
function inside(bytes: Uint8Array, number: number, indent: string, room: { left: number }): string[] {
  const text = textOf(bytes);
  if (text !== null) return [`${indent}${number}: ${JSON.stringify(text)}`];
  if (indent.length / 2 < DEPTH_MAX) {
    try {
      return [`${indent}${number} {`, ...lines(bytes, `${indent}  `, room), `${indent}}`];
    } catch (error) {
      if (!(error instanceof NoProtobuf)) throw error;
    }
  }
  return [`${indent}${number}: ${[...bytes.subarray(0, 256)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}`];
}

/** Show a payload as protobuf's fields; what is none is said to be. */
export function readProtobuf(payload: Uint8Array): string {
  try {
    return lines(payload, "", { left: FIELDS_MAX }).join("\n");
  } catch (error) {
    if (error instanceof NoProtobuf) return `no protobuf: ${error.message}`;
    throw error;
  }
}
