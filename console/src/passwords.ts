/** What is kept of a password, made here: the password itself is never sent.
 *
 * The same as `quantum users add` makes: scrypt of its SHA-256 for those who show it in clear, and a
 * credential for each mechanism of SCRAM (RFC 5802). Scrypt (RFC 7914) is not in WebCrypto.
 */

const COST = { log: 14, r: 8, p: 5 };
const ITERATIONS = 16_384;
const SALT_BYTES = 16;
const MECHANISMS = [["SCRAM-SHA-256", "SHA-256", 32], ["SCRAM-SHA-512", "SHA-512", 64]] as const;

type Bytes = Uint8Array<ArrayBuffer>;

function base64(data: Bytes): string {
  return btoa(String.fromCharCode(...data));
}

async function pbkdf2(hash: string, password: Bytes, salt: Bytes, iterations: number, size: number): Promise<Bytes> {
  const key = await crypto.subtle.importKey("raw", password, "PBKDF2", false, ["deriveBits"]);
  return new Uint8Array(await crypto.subtle.deriveBits({ name: "PBKDF2", hash, salt, iterations }, key, 8 * size));
}

async function hmac(hash: string, key: Bytes, words: string): Promise<Bytes> {
  const held = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", held, new TextEncoder().encode(words)));
}

function rotated(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}

/** Let `held` be Salsa20/8 of itself and a piece of `block`; its words are local, for they are hot. */
function salsa(held: Int32Array, block: Int32Array, from: number): void {
  for (let nth = 0; nth < 16; nth++) held[nth]! ^= block[from + nth]!;
  let x0 = held[0]!, x1 = held[1]!, x2 = held[2]!, x3 = held[3]!, x4 = held[4]!, x5 = held[5]!, x6 = held[6]!, x7 = held[7]!;
  let x8 = held[8]!, x9 = held[9]!, x10 = held[10]!, x11 = held[11]!, x12 = held[12]!, x13 = held[13]!, x14 = held[14]!, x15 = held[15]!;
  for (let round = 0; round < 4; round++) {
    x4 ^= rotated((x0 + x12) | 0, 7);
    x8 ^= rotated((x4 + x0) | 0, 9);
    x12 ^= rotated((x8 + x4) | 0, 13);
    x0 ^= rotated((x12 + x8) | 0, 18);
    x9 ^= rotated((x5 + x1) | 0, 7);
    x13 ^= rotated((x9 + x5) | 0, 9);
    x1 ^= rotated((x13 + x9) | 0, 13);
    x5 ^= rotated((x1 + x13) | 0, 18);
    x14 ^= rotated((x10 + x6) | 0, 7);
    x2 ^= rotated((x14 + x10) | 0, 9);
    x6 ^= rotated((x2 + x14) | 0, 13);
    x10 ^= rotated((x6 + x2) | 0, 18);
    x3 ^= rotated((x15 + x11) | 0, 7);
    x7 ^= rotated((x3 + x15) | 0, 9);
    x11 ^= rotated((x7 + x3) | 0, 13);
    x15 ^= rotated((x11 + x7) | 0, 18);
    x1 ^= rotated((x0 + x3) | 0, 7);
    x2 ^= rotated((x1 + x0) | 0, 9);
    x3 ^= rotated((x2 + x1) | 0, 13);
    x0 ^= rotated((x3 + x2) | 0, 18);
    x6 ^= rotated((x5 + x4) | 0, 7);
    x7 ^= rotated((x6 + x5) | 0, 9);
    x4 ^= rotated((x7 + x6) | 0, 13);
    x5 ^= rotated((x4 + x7) | 0, 18);
    x11 ^= rotated((x10 + x9) | 0, 7);
    x8 ^= rotated((x11 + x10) | 0, 9);
    x9 ^= rotated((x8 + x11) | 0, 13);
    x10 ^= rotated((x9 + x8) | 0, 18);
    x12 ^= rotated((x15 + x14) | 0, 7);
    x13 ^= rotated((x12 + x15) | 0, 9);
    x14 ^= rotated((x13 + x12) | 0, 13);
    x15 ^= rotated((x14 + x13) | 0, 18);
  }
  held[0]! += x0; held[1]! += x1; held[2]! += x2; held[3]! += x3;
  held[4]! += x4; held[5]! += x5; held[6]! += x6; held[7]! += x7;
  held[8]! += x8; held[9]! += x9; held[10]! += x10; held[11]! += x11;
  held[12]! += x12; held[13]! += x13; held[14]! += x14; held[15]! += x15;
}

/** scryptBlockMix: from `block` into `out`, which are apart. */
function mixBlock(block: Int32Array, out: Int32Array, held: Int32Array): void {
  const pieces = block.length / 16;
  held.set(block.subarray(block.length - 16));
  for (let piece = 0; piece < pieces; piece++) {
    salsa(held, block, 16 * piece);
    out.set(held, 16 * ((piece >> 1) + (piece & 1 ? pieces / 2 : 0)));
  }
}

/** scryptROMix of one block of 32 r words. */
function mixMemory(block: Int32Array, memory: Int32Array, n: number): void {
  const size = block.length;
  const held = new Int32Array(16);
  let here: Int32Array = block.slice();
  let there: Int32Array = new Int32Array(size);
  for (let nth = 0; nth < n; nth++) {
    memory.set(here, nth * size);
    mixBlock(here, there, held);
    [here, there] = [there, here];
  }
  for (let nth = 0; nth < n; nth++) {
    const from = (here[size - 16]! & (n - 1)) * size;
    for (let word = 0; word < size; word++) here[word]! ^= memory[from + word]!;
    mixBlock(here, there, held);
    [here, there] = [there, here];
  }
  block.set(here);
}

async function scrypt(password: Bytes, salt: Bytes): Promise<Bytes> {
  const { log, r, p } = COST;
  const n = 1 << log;
  const held = await pbkdf2("SHA-256", password, salt, 1, p * 128 * r);
  const view = new DataView(held.buffer);
  const words = Int32Array.from({ length: held.length / 4 }, (_none, nth) => view.getInt32(4 * nth, true));
  const memory = new Int32Array(n * 32 * r);
  for (let nth = 0; nth < p; nth++) {
    mixMemory(words.subarray(nth * 32 * r, (nth + 1) * 32 * r), memory, n);
    await new Promise((done) => setTimeout(done)); // the page is drawn meanwhile
  }
  words.forEach((word, nth) => view.setInt32(4 * nth, word, true));
  return pbkdf2("SHA-256", password, held, 1, 32);
}

/** Return all that is kept of a password. */
export async function keepPassword(password: string): Promise<string> {
  const said = new TextEncoder().encode(password);
  const draw = () => crypto.getRandomValues(new Uint8Array(SALT_BYTES));
  const fixed = new Uint8Array(await crypto.subtle.digest("SHA-256", said));
  const salt = draw();
  const parts = [`$scrypt$ln=${COST.log},r=${COST.r},p=${COST.p}$${base64(salt)}$${base64(await scrypt(fixed, salt))}`];
  for (const [mechanism, hash, size] of MECHANISMS) {
    const own = draw();
    const salted = await pbkdf2(hash, said, own, ITERATIONS, size);
    const stored = new Uint8Array(await crypto.subtle.digest(hash, await hmac(hash, salted, "Client Key")));
    parts.push(`$${mechanism}$i=${ITERATIONS}$${[own, stored, await hmac(hash, salted, "Server Key")].map(base64).join("$")}`);
  }
  return parts.join(" ");
}
