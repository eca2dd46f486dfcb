/** What is kept of a password, made here: the password itself is never sent.
 *
 * The same as `quantum users add` makes: scrypt of its SHA-256 for those who show it in clear, and a
 * credential for each mechanism of SCRAM (RFC 5802). WebCrypto has no scrypt, so all of it is noble's;
 * what takes long gives way every few milliseconds, and the page is drawn meanwhile.
 */

import { hmac } from "@noble/hashes/hmac.js";
import { pbkdf2Async } from "@noble/hashes/pbkdf2.js";
import { scryptAsync } from "@noble/hashes/scrypt.js";
import { sha256, sha512 } from "@noble/hashes/sha2.js";

const COST = { log: 14, r: 8, p: 5 };
const KEY_BYTES = 32;
const ITERATIONS = 16_384;
const SALT_BYTES = 16;
const MECHANISMS = [["SCRAM-SHA-256", sha256], ["SCRAM-SHA-512", sha512]] as const;

function utf8(words: string): Uint8Array {
  return new TextEncoder().encode(words);
}

function base64(data: Uint8Array): string {
  return btoa(String.fromCharCode(...data));
}

function drawSalt(): Uint8Array {
  return crypto.getRandomValues(new Uint8Array(SALT_BYTES));
}

/** Return all that is kept of a password. */
export async function keepPassword(password: string): Promise<string> {
  const said = utf8(password);
  const { log, r, p } = COST;
  const salt = drawSalt();
  const key = await scryptAsync(sha256(said), salt, { N: 1 << log, r, p, dkLen: KEY_BYTES });
  const parts = [`$scrypt$ln=${log},r=${r},p=${p}$${base64(salt)}$${base64(key)}`];
  for (const [mechanism, hash] of MECHANISMS) {
    const own = drawSalt();
    const salted = await pbkdf2Async(hash, said, own, { c: ITERATIONS, dkLen: hash.outputLen });
    const stored = hash(hmac(hash, salted, utf8("Client Key")));
    const server = hmac(hash, salted, utf8("Server Key"));
    parts.push(`$${mechanism}$i=${ITERATIONS}$${[own, stored, server].map(base64).join("$")}`);
  }
  return parts.join(" ");
}
