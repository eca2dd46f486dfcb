/** What is read of an authority's certificate: whose it is, and when it ends (X.509, DER). */

export interface Authority {
  name: string;
  /** In ms since 1970; null: it could not be read. */
  ends: number | null;
}

interface Piece {
  tag: number;
  start: number;
  end: number;
}

const COMMON_NAME = [0x55, 0x04, 0x03];
const VERSION = 0xa0;
const UTC_TIME = 0x17;

function pieceAt(der: Uint8Array, at: number): Piece {
  const first = der[at + 1] ?? 0;
  const wide = first > 0x80 ? first - 0x80 : 0;
  let size = wide ? 0 : first;
  for (let nth = 0; nth < wide; nth++) size = size * 256 + (der[at + 2 + nth] ?? 0);
  const start = at + 2 + wide;
  if (start + size > der.length) throw new RangeError("cut off");
  return { tag: der[at] ?? 0, start, end: start + size };
}

function piecesOf(der: Uint8Array, whole: Piece): Piece[] {
  const found: Piece[] = [];
  for (let at = whole.start; at < whole.end; at = found[found.length - 1]!.end) found.push(pieceAt(der, at));
  return found;
}

function textOf(der: Uint8Array, piece: Piece): string {
  return new TextDecoder().decode(der.subarray(piece.start, piece.end));
}

function timeOf(der: Uint8Array, piece: Piece): number {
  const said = textOf(der, piece);
  const year = piece.tag === UTC_TIME ? (Number(said.slice(0, 2)) < 50 ? "20" : "19") + said.slice(0, 2) : said.slice(0, 4);
  const [month, day, hour, minute, second] = said.slice(piece.tag === UTC_TIME ? 2 : 4).match(/\d\d/g) ?? [];
  return Date.parse(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`);
}

function commonName(der: Uint8Array, subject: Piece): string {
  for (const set of piecesOf(der, subject)) {
    for (const pair of piecesOf(der, set)) {
      const [kind, value] = piecesOf(der, pair);
      if (kind && value && COMMON_NAME.every((byte, nth) => der[kind.start + nth] === byte)) return textOf(der, value);
    }
  }
  return "";
}

export function readAuthority(pem: string): Authority {
  try {
    const body = pem.replace(/-----[^-]*-----/g, "").replace(/\s+/g, "");
    const der = Uint8Array.from(atob(body), (each) => each.charCodeAt(0));
    const parts = piecesOf(der, piecesOf(der, pieceAt(der, 0))[0]!);
    const [, , , validity, subject] = parts[0]!.tag === VERSION ? parts.slice(1) : parts;
    const ends = timeOf(der, piecesOf(der, validity!)[1]!);
    return { name: commonName(der, subject!) || "without a name", ends: Number.isNaN(ends) ? null : ends };
  } catch {
    return { name: "unreadable", ends: null };
  }
}
