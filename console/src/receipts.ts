/** Receipts checked in this page: the same rules as `quantum receipts verify`, and no node is asked. */

const DOMAIN = "quantum durability receipt v1\0";
const NUMBERS = ["group", "term", "index", "durable_index", "node", "at_ms"] as const;
const SHARED = ["cluster", "group", "term", "index", "entry_sha256", "message_sha256"] as const;

export interface Statement {
  cluster: string;
  group: number;
  term: number;
  index: number;
  entry_sha256: string;
  message_sha256: string;
  durable_index: number;
  mode: string;
  voters: number[];
  outgoing: number[];
  node: number;
  at_ms: number;
}

export interface Signed {
  statement: Statement;
  public_key: string;
  signature: string;
}

export interface Receipt {
  version: number;
  id: string;
  tenant: string;
  partition: number;
  statements: Signed[];
  missing: Record<string, string>;
}

export interface TrustedKey {
  key_id: string;
  purpose: string;
  public_key: string;
}

export interface Verdict {
  proven: boolean;
  signers: number[];
  voters: number[];
  faults: string[];
}

/** Read a receipt as the API spells it, wide numbers as text; throws for what is none. */
export function readReceipt(text: string): Receipt {
  const found = JSON.parse(text);
  if (!Array.isArray(found?.statements)) throw new Error("this is no receipt");
  const statements = found.statements.map((each: Signed) => ({ ...each, statement: plain(each.statement) }));
  return { ...found, version: Number(found.version), statements, missing: found.missing ?? {} };
}

/** The members in the order in which they are signed. */
function plain(said: Statement): Statement {
  const number = Object.fromEntries(NUMBERS.map((name) => [name, Number(said[name])])) as Pick<Statement, (typeof NUMBERS)[number]>;
  return {
    cluster: String(said.cluster), group: number.group, term: number.term, index: number.index,
    entry_sha256: String(said.entry_sha256), message_sha256: String(said.message_sha256),
    durable_index: number.durable_index, mode: String(said.mode),
    voters: said.voters.map(Number), outgoing: said.outgoing.map(Number), node: number.node, at_ms: number.at_ms,
  };
}

function bytesOfHex(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

/** Which node each trusted public key belongs to. */
export function trustedNodes(keys: TrustedKey[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const each of keys) {
    const named = /^node-(\d+)(?:-\d+)?$/.exec(each.key_id);
    if (each.purpose === "SnapshotManifestKey" && named) {
      found.set(hexOf(Uint8Array.from(atob(each.public_key), (letter) => letter.charCodeAt(0))), Number(named[1]));
    }
  }
  return found;
}

/** Digest a message as receipts do. */
export async function digestMessage(topic: string, payload: Uint8Array): Promise<string> {
  const name = new TextEncoder().encode(topic);
  const whole = new Uint8Array(4 + name.length + payload.length);
  new DataView(whole.buffer).setUint32(0, name.length);
  whole.set(name, 4);
  whole.set(payload, 4 + name.length);
  return hexOf(new Uint8Array(await crypto.subtle.digest("SHA-256", whole)));
}

async function faultOf(signed: Signed, trusted: Map<string, number>): Promise<string> {
  const said = signed.statement;
  const owner = trusted.get(signed.public_key);
  if (owner === undefined) return "its key is not among the trusted ones";
  if (owner !== said.node) return `its key belongs to node ${owner}`;
  if (said.durable_index < said.index) return "its ledger does not reach the entry";
  if (![...said.voters, ...said.outgoing].includes(said.node)) return "it does not vote";
  const key = await crypto.subtle.importKey("raw", bytesOfHex(signed.public_key), "Ed25519", false, ["verify"]);
  const bytes = new TextEncoder().encode(DOMAIN + JSON.stringify(said));
  const fits = await crypto.subtle.verify("Ed25519", key, bytesOfHex(signed.signature), bytes);
  return fits ? "" : "the signature does not fit";
}

/** Judge a receipt by the nodes' public keys; with a digest it must be about that very message. */
export async function verifyReceipt(receipt: Receipt, keys: TrustedKey[], digest = ""): Promise<Verdict> {
  const trusted = trustedNodes(keys);
  const said = receipt.statements.map((each) => each.statement);
  const faults: string[] = [];
  if (receipt.version !== 1) faults.push(`a receipt of version ${receipt.version}; this page knows 1`);
  const first = said[0];
  if (first === undefined) faults.push("nobody signed it");
  for (const name of SHARED) {
    if (new Set(said.map((each) => each[name])).size > 1) faults.push(`the statements differ in ${name}`);
  }
  if (first !== undefined) {
    if (digest && digest !== first.message_sha256) faults.push("it is about another message: topic or payload differ");
    if (receipt.id !== `${first.group}-${first.index}-${first.message_sha256.slice(0, 16)}`) {
      faults.push("its id is not that of the entry which was signed");
    }
  }
  const signers = new Set<number>();
  for (const each of receipt.statements) {
    const fault = await faultOf(each, trusted);
    if (fault) faults.push(`node ${each.statement.node}: ${fault}`);
    else signers.add(each.statement.node);
  }
  for (const members of said.flatMap((each) => [each.voters, each.outgoing]).filter((each) => each.length)) {
    const all = new Set(members);
    const there = [...all].filter((each) => signers.has(each)).length;
    const needed = Math.floor(all.size / 2) + 1;
    const words = `${there} of ${all.size} voters signed, and ${needed} are a quorum`;
    if (there < needed && !faults.includes(words)) faults.push(words);
  }
  const voters = [...new Set(said.flatMap((each) => [...each.voters, ...each.outgoing]))].sort((a, b) => a - b);
  return { proven: !faults.length, signers: [...signers].sort((a, b) => a - b), voters, faults };
}
